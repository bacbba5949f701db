"""An install goes on without a C compiler, and a wheel with what is compiled says its platform."""

import re
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = Path("sources/pyspark_timestream/kafka")
COMPILED = ("client/native/native_reader.c", "decode/json/scan_json.c")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook as hatchling makes it, over a copy of the sources; `warned` is what it said."""
    # hatchling is there only while something is built.
    stand_in = SimpleNamespace(BuildHookInterface=object)
    parts = ["hatchling", "builders", "hooks", "plugin", "interface"]
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), stand_in)
    shutil.copy(ROOT / "build_native.py", tmp_path)
    for name in COMPILED:
        (tmp_path / SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / SOURCES / name, tmp_path / SOURCES / name)
    module = runpy.run_path(str(ROOT / "hatch_build.py"))
    made = module["NativeReaderHook"]()
    made.platform_tag = module["platform_tag"]
    made.root, made.warned = str(tmp_path), []
    made.app = SimpleNamespace(display_warning=made.warned.append)
    return made


def libraries(hook: Any) -> list[Path]:
    return [(Path(hook.root) / SOURCES / name).with_suffix(".so") for name in COMPILED]


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_without_a_compiler_the_package_is_built_without_the_native_reader(
    hook: Any, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    build_data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize(version, build_data)
    assert build_data == {"force_include": {}, "pure_python": True}
    names = [warning.partition(": ")[0] for warning in hook.warned]
    assert names == ["built without the native reader", "built without the JSON scanner"]
    assert all("/nonexistent/cc" in warning for warning in hook.warned)
    assert not any(library.exists() for library in libraries(hook))


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_a_wheel_with_the_native_reader_is_for_one_platform_and_every_python_3(
    hook: Any,
) -> None:
    build_data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize("standard", build_data)
    assert hook.warned == []
    reader, scanner = map(str, libraries(hook))
    assert build_data["force_include"] == {
        reader: "pyspark_timestream/kafka/client/native/native_reader.so",
        scanner: "pyspark_timestream/kafka/decode/json/scan_json.so",
    }
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_[a-z0-9_]+", build_data["tag"])
    assert not build_data["pure_python"]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_a_source_that_no_compiler_accepts_leaves_the_other_one(hook: Any) -> None:
    build_data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    reader, scanner = libraries(hook)
    scanner.with_suffix(".c").write_text("#error no such machine")
    hook.initialize("standard", build_data)
    assert [warning.partition(":")[0] for warning in hook.warned] == [
        "built without the JSON scanner"
    ]
    assert list(build_data["force_include"]) == [str(reader)]
    assert build_data["tag"]


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_an_editable_install_has_the_library_beside_its_source(hook: Any) -> None:
    build_data: dict[str, Any] = {"force_include": {}}
    hook.initialize("editable", build_data)
    assert all(library.exists() for library in libraries(hook))
    assert build_data == {"force_include": {}}


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [
        (b"GLIBC_2.2.5 GLIBC_2.14", "manylinux_2_17_x86_64"),
        (b"GLIBC_2.9 GLIBC_2.34 GLIBC_2.17", "manylinux_2_34_x86_64"),
        # musl, for one: pip installs it on the machine that built it, and PyPI refuses it.
        (b"no such symbol", "linux_x86_64"),
    ],
)
def test_a_wheels_platform_is_that_of_its_newest_glibc_symbol(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbols: bytes, tag: str
) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    library, other = tmp_path / "native_reader.so", tmp_path / "scan_json.so"
    library.write_bytes(b"\x7fELF\x00" + symbols.replace(b" ", b"\x00"))
    other.write_bytes(b"\x7fELF\x00")
    assert hook.platform_tag(library, other) == hook.platform_tag(other, library) == tag
