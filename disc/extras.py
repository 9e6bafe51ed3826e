"""How to install what an optional part of disc needs: the answer to a package that is missing.

The name `disc` on the package index is another project, so no message may name a distribution of ours as if the index had it: the
packages themselves are listed, with the versions that the installed metadata states.
"""

from __future__ import annotations

import re
import shlex

DISTRIBUTION = "disc-compiler"  # as pyproject.toml has it; the package is imported as `disc`
_REQUIREMENT = re.compile(r"""(?P<what>[^;]+?)\s*;.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")
_OWN = re.compile(rf"{DISTRIBUTION}\[(?P<extras>[^\]]+)\]")


def how_to_install(*extras: str) -> str:
    """The command that installs what these extras need, such as "pip install 'grpcio<2,>=1.85.1'", whatever the index has under our name.

    Where disc is not installed but imported from a checkout, the command installs the checkout.
    """
    import importlib.metadata  # only where something is missing: `import disc` stays fast

    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return f"pip install '.[{','.join(extras)}]' (in the checkout of disc)"
    packages = dict.fromkeys(package for extra in extras for package in _packages(extra, listed))
    return f"pip install {shlex.join(packages)}"


def _packages(extra: str, listed: list[str]) -> list[str]:
    """The requirements of one extra, those of extras that it names in its place."""
    found: list[str] = []
    for line in listed:
        match = _REQUIREMENT.fullmatch(line)
        if match is None or match["extra"] != extra:
            continue
        own = _OWN.fullmatch(match["what"])
        if own is None:
            found.append(match["what"])
        else:
            found += [package for name in own["extras"].split(",") for package in _packages(name.strip(), listed)]
    return found
