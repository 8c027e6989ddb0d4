"""Write licences, bill of materials and desktop files. Run by build.py with the build's own Python."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
from pathlib import Path

import description as d
import documents
import parts
import sbom


def main(flavour_name: str, extras: Path, licences: Path, program: Path, epoch: int) -> None:
    """extras: for installers. licences: folder inside the program. program: its libraries are looked through."""
    flavour = d.FLAVOURS[flavour_name]
    moment = dt.datetime.fromtimestamp(epoch, dt.UTC)
    distributions = parts.distributions(leave_out=flavour.leave_out)
    write(extras / "share" / "applications" / f"{d.NAME}.desktop", documents.desktop_entry())
    write(extras / "share" / "mime" / "packages" / f"{d.NAME}.xml", documents.mime_types())
    write(extras / "share" / "metainfo" / f"{d.APP_ID}.metainfo.xml", documents.metainfo(moment.date()))

    text = documents.third_party(distributions)
    write(extras / "THIRD-PARTY.txt", text)
    write(licences / "THIRD-PARTY.txt", text)
    shutil.copy2(d.ROOT / "LICENSE", licences / "LICENSE.txt")
    for path in sorted((Path(__file__).parent / "licences").iterdir()):
        shutil.copy2(path, licences / path.name)
    for found in distributions:
        for path in documents.licence_files(found):
            relative = str(path).partition(".dist-info/")[2].replace("/", "_").replace("\\", "_")
            place = licences / found.name / relative.removeprefix("licenses_")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    for path in Path(sys.base_prefix).glob("lib/python3*/LICENSE.txt"):
        shutil.copyfile(path, licences / "CPython-LICENSE.txt")
    if sys.platform.startswith("linux"):
        of_the_system(program, licences / "system")

    document = sbom.bill(distributions, flavour, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
    wrong = sbom.differences(document, sbom.locked(d.ROOT / "constraints.txt"))
    if wrong:
        raise SystemExit("\n".join(wrong))
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    write(extras / "sbom.cdx.json", text)
    write(licences / "sbom.cdx.json", text)


def of_the_system(program: Path, folder: Path) -> None:
    """Copyright files of the Debian packages whose libraries PyInstaller put into the program's folder."""
    for path in sorted(program.glob("lib*.so*")):
        if path.is_symlink():
            continue
        asked = subprocess.run(["dpkg", "--search", f"*/{path.name}"], capture_output=True, text=True, check=False)
        package = asked.stdout.partition(":")[0].strip()
        copyright_file = Path("/usr/share/doc") / package / "copyright"
        if package and copyright_file.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(copyright_file, folder / f"{package}.txt")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
