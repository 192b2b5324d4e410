// Requests to the server. All addresses are relative, so that the secret in the page's address stays in front of them.

async function read(response) {
  const body = await response.json().catch(() => ({ error: `the server answered with ${response.status}` }));
  if (!response.ok) throw new Error(body.error || `the server answered with ${response.status}`);
  return body;
}

export async function get(path, values = {}) {
  const query = new URLSearchParams(values).toString();
  return read(await fetch(query ? `${path}?${query}` : path, { cache: "no-store" }));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  return read(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}
