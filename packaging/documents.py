"""Texts that installers carry: desktop file, MIME types, AppStream data, licences, Debian's control file."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path
from xml.sax.saxutils import escape

import description as d


def desktop_entry() -> str:
    """freedesktop.org's desktop entry. The archive's install.sh puts the program's whole path in."""
    return "\n".join(
        (
            "[Desktop Entry]",
            "Type=Application",
            "Version=1.5",
            f"Name={d.TITLE}",
            "GenericName=Model Quantizer",
            f"Comment={d.SUMMARY}",
            f"Exec={d.NAME} %f",
            f"Icon={d.NAME}",
            "Terminal=false",
            "StartupNotify=true",
            f"StartupWMClass={d.NAME}",
            "Categories=Science;ArtificialIntelligence;",
            f"Keywords={';'.join(d.KEYWORDS)};",
            f"MimeType={';'.join(d.MIME_TYPES)};",
            "",
        )
    )


def mime_types() -> str:
    """shared-mime-info's description of the file types."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<mime-info xmlns="http://www.freedesktop.org/standards/shared-mime-info">',
    ]
    for kind, (what, pattern, magic) in d.MIME_TYPES.items():
        lines += [f'  <mime-type type="{kind}">', f"    <comment>{escape(what)}</comment>"]
        if magic:
            lines.append(f'    <magic><match type="string" offset="{magic[0]}" value="{escape(magic[1])}"/></magic>')
        lines += [f'    <glob pattern="{pattern}"/>', "  </mime-type>"]
    return "\n".join([*lines, "</mime-info>", ""])


def metainfo(released: dt.date) -> str:
    """AppStream's data, which software centres show."""
    paragraphs = re.sub(r"(?<=[.]) (?=No account)", "\n", d.DETAILS).split("\n")
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<component type="desktop-application">',
        f"  <id>{d.APP_ID}</id>",
        "  <metadata_license>CC0-1.0</metadata_license>",
        f"  <project_license>{d.LICENCE}</project_license>",
        f"  <name>{d.TITLE}</name>",
        f"  <summary>{escape(d.SUMMARY)}</summary>",
        '  <developer id="org.bitsmith"><name>Bitsmith contributors</name></developer>',
        "  <description>",
        *(f"    <p>{escape(p)}</p>" for p in paragraphs),
        "  </description>",
        f'  <launchable type="desktop-id">{d.NAME}.desktop</launchable>',
        f"  <provides><binary>{d.NAME}</binary>",
        *(f"    <mediatype>{kind}</mediatype>" for kind in d.MIME_TYPES),
        "  </provides>",
        "  <categories><category>Science</category><category>ArtificialIntelligence</category></categories>",
        f"  <keywords>{''.join(f'<keyword>{escape(k)}</keyword>' for k in d.KEYWORDS)}</keywords>",
        '  <content_rating type="oars-1.1"/>',
        f'  <releases><release version="{d.VERSION}" date="{released.isoformat()}"/></releases>',
        "</component>",
        "",
    ]
    return "\n".join(lines)


def control(flavour: d.Flavour, depends: Iterable[str], architecture: str, installed_kb: int) -> str:
    """Debian's control file. The two flavours hold the same files, so either takes the place of the other."""
    others = [f.package for f in d.FLAVOURS.values() if f is not flavour]
    body = f"{d.DETAILS} {flavour.says}"
    fields = {
        "Package": flavour.package,
        "Version": d.VERSION,
        "Architecture": architecture,
        "Maintainer": d.MAINTAINER,
        "Installed-Size": str(installed_kb),
        "Depends": ", ".join(depends),
        "Recommends": ", ".join(d.RECOMMENDS),
        "Conflicts": ", ".join(others),
        "Replaces": ", ".join(others),
        "Section": "science",
        "Priority": "optional",
        "Description": f"{d.SUMMARY}\n {body}",
    }
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


# What the program carries that is no Python distribution: name, licence, a sentence. Their notices are in the folders
# of the distributions that brought them, or here.
BUNDLED = (
    (
        "Qt 6 (PySide6-Essentials)",
        "LGPL-3.0-only",
        "Dynamic libraries, see below.",
    ),
    ("CPython", "PSF-2.0", "Interpreter and standard library."),
    ("OpenSSL", "Apache-2.0", "libssl and libcrypto, for connections to model hubs."),
    (
        "PyInstaller's bootloader",
        "GPL-2.0-or-later WITH Bootloader-exception",
        "It allows programs of any licence.",
    ),
    ("ICU", "Unicode-3.0", "Part of Qt's libraries."),
    ("xcb utilities, libxkbcommon", "MIT", "What Qt draws with on X11."),
    ("Inter, JetBrains Mono", "OFL-1.1", "Fonts, in resources/fonts with their licences."),
    ("Lucide", "ISC", "Icons, in resources/icons with their licence."),
    ("SmolLM2-135M-Instruct", "Apache-2.0", "The sample model, by Hugging Face."),
)

QT_NOTICE = """Qt and PySide6 are used under the GNU Lesser General Public License, version 3 (LGPL-3.0.txt).
Their libraries are separate files and unchanged: those whose names begin with libQt6, libpyside6 or libshiboken6,
in the program's folder `_internal` and in `_internal/PySide6`. To run the program with your own build of them, replace
these files by yours of the same major version and restart; nothing checks or signs them on Linux and Windows. On macOS
sign the program again afterwards: codesign --force --deep --sign - Bitsmith.app. The sources are those of the release
that sbom.cdx.json names, at https://download.qt.io/official_releases/QtForPython/ and https://code.qt.io/.
"""


def third_party(distributions: Iterable[Distribution]) -> str:
    """One list of everything that the program is made of, with licences, and the notice that Qt's asks for."""
    lines = [
        f"{d.TITLE} {d.VERSION}: {d.LICENCE}. It contains the following works of others.",
        "",
        "Python distributions",
        "",
    ]
    lines += [f"  {p.name} {p.version}: {licence(p)}" for p in distributions if p.name.lower() != d.NAME]
    lines += ["", "Other works", ""]
    lines += [f"  {name}: {terms}. {says}" for name, terms, says in BUNDLED]
    lines += ["", "Their licences are in the folder third-party beside this file.", "", "Qt", "", QT_NOTICE]
    return "\n".join(lines)


def licence(distribution: Distribution) -> str:
    """The licence that a distribution's metadata name, in a line."""
    meta = distribution.metadata
    said = meta.get("License-Expression") or ""
    if not said:
        kinds = [c.rpartition(" :: ")[2] for c in meta.get_all("Classifier") or [] if c.startswith("License ::")]
        said = ", ".join(kinds) or (meta.get("License") or "").strip().split("\n")[0]
    return said or "see its files"


def licence_files(distribution: Distribution) -> list[Path]:
    """Licences, notices and authors among a distribution's files."""
    names = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)
    files = [f for f in distribution.files or [] if names.search(f.name) and f.suffix not in (".py", ".pyc", ".h")]
    return [path for f in files if ".dist-info" in str(f) and (path := Path(str(f.locate()))).is_file()]


def copyright_file(text: str) -> str:
    """Debian's copyright file: machine-readable head, then the list of what else is inside."""
    body = "\n".join(f" {line}" if line.strip() else " ." for line in text.rstrip().splitlines())
    return (
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        f"Upstream-Name: {d.TITLE}\n\nFiles: *\nCopyright: Bitsmith contributors\nLicense: {d.LICENCE}\n"
        " On Debian systems the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.\n"
        f"Comment:\n{body}\n"
    )
