"""A place is read from texts, shown without secrets, and told from others by its credentials."""

import os
import pickle
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_timestream.errors import OptionError
from pyspark_tseries.__main__ import main
from pyspark_tseries.options import ReadOptions, SubscribeOptions, WriteOptions, parse_options
from pyspark_tseries.storage import location as locations
from pyspark_tseries.storage.location import (
    STORAGE_OPTIONS,
    Location,
    local_path,
    normalize_location,
    parse_location,
)

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": "s3cret",
    "AWS_SESSION_TOKEN": "t0ken",
}
HTTP = {"AWS_ENDPOINT_URL": "http://h:1", "AWS_ALLOW_HTTP": "true"}


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("s3://b/a", "s3://b/a"),
        ("S3A://b/a b/c=1//", "s3://b/a b/c=1"),
        ("file:///tmp/x", "/tmp/x"),
        ("/s3:/b", "/s3:/b"),
        ("file:///tmp/a%23b%3Fc%C3%A9", "/tmp/a#b?cé"),
        ("/tmp/a#b?c", "/tmp/a#b?c"),
    ],
)
def test_a_location_is_a_local_path_or_a_bucket_with_a_prefix(text, location):
    assert normalize_location(text) == location
    assert normalize_location(location) == location


@pytest.mark.parametrize(
    "text",
    [
        "s3://b",
        "s3://b/",
        "s3:/b/a",
        "s3:///a",
        "s3://b/a#x",
        "s3://b/a//c",
        "s3://b/./a",
        "s3://k:s@b/a",
    ],
)
def test_what_is_no_bucket_with_a_prefix_is_refused(text):
    with pytest.raises(ValueError, match="prefix"):
        normalize_location(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file:///tmp/run#2/store", "%23"),
        ("file:///tmp/store?x=1", r"%3F.*without 'file:'"),
        ("file:///tmp/%FF", "cannot be a Delta table"),
        ("/tmp/a\udcff", "cannot be a Delta table"),
    ],
)
def test_a_uri_that_would_name_another_directory_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        normalize_location(text)


@given(st.text(max_size=30).map("s3://b/".__add__))
def test_whatever_is_accepted_names_itself(text):
    try:
        location = normalize_location(text)
    except ValueError:
        return
    assert normalize_location(location) == location
    assert not {"", ".", ".."} & set(location[7:].split("/"))


def test_location_hides_secrets_and_survives_pickling():
    location = parse_location("s3://b/a", KEYS)
    assert repr(location) == "Location(root='s3://b/a')"
    assert location.redact("AKIA said s3cret of t0ken") == "[hidden] said [hidden] of [hidden]"
    assert pickle.loads(pickle.dumps(location)) == location
    assert parse_location(location) is location


def test_local_location_is_absolute_and_takes_no_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_location("a") == Location(str(tmp_path / "a"))
    assert parse_location("a").filesystem is None
    assert parse_location("a").storage_options is None
    with pytest.raises(ValueError, match="a local path needs no AWS_REGION"):
        parse_location("a", {"aws_region": "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aws_secret": "hush"}, "no storage option 'aws_secret'"),
        ({"AWS_ACCESS_KEY_ID": "hush"}, "one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ENDPOINT_URL": "hush"}, "not an http: or https: URL"),
        ({"AWS_ENDPOINT_URL": "http://hush"}, "needs AWS_ALLOW_HTTP=true"),
        ({"AWS_ALLOW_HTTP": "hush"}, "neither 'true' nor 'false'"),
        ({"AWS_REGION": "hush", "aws_default_region": "y"}, "given twice"),
    ],
)
@pytest.mark.parametrize("cls", [WriteOptions, ReadOptions, SubscribeOptions])
def test_wrong_storage_options_are_named_without_their_values(cls, options, said):
    raw = {f"storageoptions.{key.lower()}": value for key, value in options.items()}
    with pytest.raises(OptionError) as error:
        parse_options(cls, {"path": "s3://b/a", **raw})
    message = str(error.value)
    assert said.lower() in message.lower()
    assert "hush" not in message
    assert f"accepted: {', '.join(STORAGE_OPTIONS)}; next step: " in message


@pytest.mark.parametrize(
    "options", [["hush"], "hush", {5: "hush"}, {"AWS_REGION": 5}, {"AWS_SECRET_ACCESS_KEY": None}]
)
def test_storage_options_that_are_no_texts_are_refused_without_their_values(options):
    with pytest.raises(OptionError, match=r"accepted: AWS_.*; next step: ") as error:
        parse_location("s3://b/a", options)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("cls", [WriteOptions, ReadOptions, SubscribeOptions])
def test_storage_options_are_read_in_any_case(cls):
    given = {**KEYS, **HTTP}
    for change in (str.lower, str.upper):
        raw = {change(f"storageOptions.{key}"): value for key, value in given.items()}
        options = parse_options(cls, {"path": "s3://b/a", **raw})
        assert options.location == parse_location("s3://b/a", given)
        assert options.location.storage_options == {**given, "AWS_REGION": "us-east-1"}
        assert "s3cret" not in repr(options)


def test_locations_with_different_credentials_are_different():
    assert parse_location("s3://b/a", KEYS) != parse_location(
        "s3://b/a", {**KEYS, "AWS_SESSION_TOKEN": "x"}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [("hush", "accepted: KEY=VALUE"), ("aws_secret=hush", "no storage option 'aws_secret'")],
)
def test_command_line_names_a_wrong_storage_option_without_its_value(capsys, given, said):
    assert main(["describe", "s3://b/a", "--storage-option", given]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "hush" not in error


@pytest.mark.parametrize("path", ["/data/a%20b", "/data/100%", "file:///data/a%2525"])
def test_a_path_with_a_percent_sign_is_refused_with_the_way_out(path):
    with pytest.raises(ValueError, match=r"has a '%'.*; accepted: a path without it; next step: "):
        local_path(path)


@pytest.mark.parametrize("path", ["~", "~/rooms", "~root/rooms"])
def test_a_home_directory_that_no_shell_has_found_is_refused_with_the_whole_path(path, monkeypatch):
    """A store in a directory named '~' was made, and 'rm -r ~' would have removed the home."""
    monkeypatch.setenv("HOME", "/home/ann")
    whole = re.escape(repr(os.path.expanduser(path)))
    with pytest.raises(ValueError, match=f"; next step: give {whole}, or './{path}' if"):
        parse_location(path)
    assert parse_location(f"./{path}") == Location(os.path.abspath(path))
    assert parse_location(f"{path.replace('~', '~~')}").root.endswith(path)


def test_a_sync_does_not_wait_for_threads_that_sync_for_others(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.touch()
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )
    pool, go = locations._sync_threads(os.getpid()), threading.Event()
    for _ in range(locations.MAX_SYNC_THREADS):
        pool.submit(go.wait, 60)
    waiting = threading.Thread(target=locations.sync, args=[map(str, paths)])
    waiting.start()
    waiting.join(40)
    is_waiting = waiting.is_alive()
    go.set()
    waiting.join()
    assert not is_waiting
    assert sorted(synced) == sorted(map(str, paths))


def test_a_sync_fails_if_any_file_is_missing_whoever_syncs_it(tmp_path):
    (tmp_path / "a").touch()
    for names in (["missing"], ["missing", "a"], ["a", "missing"], ["a", "a2", "missing", "a"]):
        with pytest.raises(FileNotFoundError):
            locations.sync(str(tmp_path / name) for name in names)
