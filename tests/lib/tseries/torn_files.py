"""Files of a store that a power loss has torn."""

from tseries.builders import forget_stores

from pyspark_tseries.store.store import Store


def newest(path, kind):
    """The file of the last commit."""
    version = Store.open(path).log.version()
    head = Store.open(path).head_id()
    forget_stores()
    return {
        "entry": path / "_delta_log" / f"{version:020d}.json",
        "data": next((path / "kind=event").glob(f"*-{head:016x}.parquet")),
        "head": path / "_tseries" / "head" / f"{head:016x}.arrow",
    }[kind]


def tear(file, how):
    whole = file.read_bytes()
    torn = {"empty": b"", "half": whole[: len(whole) // 2], "zeros": bytes(len(whole))}
    lines = whole.splitlines(keepends=True)
    file.write_bytes({**torn, "a line": b"".join(lines[:-1])}[how])
