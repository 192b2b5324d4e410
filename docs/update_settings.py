"""Write the tables of reference/settings.md from the settings themselves: python docs/update_settings.py"""

from __future__ import annotations

from pathlib import Path

from selftrain.cli.listing import setting_row
from selftrain.config.regimes import REGIMES
from selftrain.config.settings import known_settings

TITLES = {"": "The run", "data": "Data", "network": "Network", "optim": "Optimiser", "train": "Training"}


def main() -> None:
    page = Path(__file__).parent / "reference" / "settings.md"
    text = page.read_text(encoding="utf-8").split("## The run")[0]
    for section, title in TITLES.items():
        text += f"## {title}\n\n| `--set` | {' | '.join(REGIMES)} | meaning | value |\n|{'---|' * (len(REGIMES) + 3)}\n"
        for name in known_settings():
            if name.rpartition(".")[0] == section:
                text += f"| `{name}` | {' | '.join(setting_row(name))} |\n"
        text += "\n"
    page.write_text(text.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
