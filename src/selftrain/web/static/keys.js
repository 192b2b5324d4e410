// Which key means which class. Letters that are commands are left out.

const COMMANDS = "?/ cdgosuxz";
const KEYS = [..."1234567890abefhijklmnpqrtvwy"].filter((key) => !COMMANDS.includes(key));

export function keyOf(position) {
  return KEYS[position] ?? null;
}

export function positionOf(key) {
  const found = KEYS.indexOf(key);
  return found < 0 ? null : found;
}
