"""Pages of the documentation site that are made when it is built: from files outside of docs/, and from the code.

MkDocs calls the functions (`hooks` in mkdocs.yml). Nothing of it is kept in the repository, so nothing can be stale.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import mkdocs.structure.files as structure

import asyncrl
from asyncrl.config.flags import format_value
from asyncrl.config.settings import SECTION_TITLES, all_settings
from asyncrl.observers.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "index.md": ROOT / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "zoo.md": ROOT / "zoo" / "README.md",
    "notebook.md": ROOT / "docs" / "notebooks" / "cartpole.ipynb",
}
"""Files of the repository that are pages under other names."""
_PAGES = {path: name for name, path in SOURCES.items()}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
_FLAG = re.compile(r"(?<![\w`-])--[a-z]\w*(=[\w.]+)?")


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages to those of docs/."""
    pages = {
        name: notebook_page(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        for name, path in SOURCES.items()
    }
    pages |= {"settings.md": settings_page(), "metrics.md": metrics_page(), "python_reference.md": python_page()}
    for name, text in pages.items():
        files.append(structure.File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turns links between files of the repository into links between pages, and names of files into titles.

    A link to what is not a page points out of docs/, or to no file, so `mkdocs build --strict` fails.
    """
    name = page.file.src_uri
    folder = SOURCES.get(name, ROOT / "docs" / name).parent

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match.groups("")
        target = Path(os.path.normpath(folder / path))
        if text.removeprefix("docs/") == target.name and target.suffix == ".md" and target.exists():
            text = target.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        return f"[{text}]({_PAGES.get(target) or os.path.relpath(target, ROOT / 'docs')}{anchor})"

    return _LINK.sub(link, markdown).replace('src="docs/', 'src="')  # pictures with a width are HTML


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown, without outputs."""
    cells = [
        (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    return "\n\n".join(text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells) + "\n"


def settings_page() -> str:
    """Every setting with its values, its default and its meaning, by section."""
    lines = [
        "# Settings",
        "",
        "Each setting is a flag (`--name=value`), a key of a YAML file (`--config`), and a field of "
        "`asyncrl.TrainConfig`. Presets replace defaults for known environments; `--print_config` shows the values of "
        "a run and their sources.",
    ]
    settings = all_settings()
    for section, title in SECTION_TITLES.items():
        of_section = [setting for setting in settings.values() if setting.section == section]
        if not of_section:
            continue
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", "| setting | default | values | meaning |"]
        lines.append("| --- | --- | --- | --- |")
        lines += [
            f'| <a id="{setting.name}"></a>`{setting.name}` | {_cell(format_value(setting.default))} | '
            f"{_cell(setting.expected)} | {_cell(_with_code(setting.description))} |"
            for setting in of_section
        ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Every figure that a run publishes."""
    lines = [
        "# Metrics",
        "",
        "Names in `metrics.jsonl`, TensorBoard and trackers. Words in capitals stand for what varies. A record holds "
        "those that belong to the algorithm and the mode. Of several policies, those of one begin with `policy_N/`.",
        "",
        "| metric | meaning |",
        "| --- | --- |",
    ]
    return "\n".join([*lines, *(f"| `{name}` | {_cell(meaning)} |" for name, meaning in METRICS.items())]) + "\n"


def python_page() -> str:
    """Everything that `import asyncrl` offers, from the docstrings."""
    lines = [
        "# Python reference",
        "",
        "What `import asyncrl` offers. [Python API and callbacks](python_api.md) explains how.",
    ]
    for name in sorted(asyncrl.__all__):
        if callable(getattr(asyncrl, name)):
            lines += ["", f"::: asyncrl.{name}"]
    return "\n".join(lines) + "\n"


def _with_code(text: str) -> str:
    """Flags as code, so that they are not broken after a hyphen."""
    return _FLAG.sub(r"`\g<0>`", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
