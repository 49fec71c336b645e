"""A `docker run` is read as docker reads it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.launch.docker import DockerRun, is_docker_run, published_ports, read_docker_flags, read_docker_run


def read(line: str) -> DockerRun:
    return read_docker_run(shlex.split(line))


def test_flags_end_at_the_image_and_the_rest_is_the_command() -> None:
    run = read(
        "/usr/bin/docker run --rm --name vllm-a --gpus all --ipc=host -p 8001:8000 -e A=1 -e B=x=y -e C"
        " -v /models:/cache --ulimit memlock=-1 org/image:tag vllm serve m --name x -p 9"
    )
    assert run.image == "org/image:tag"
    assert run.command == ("vllm", "serve", "m", "--name", "x", "-p", "9")
    assert (run.name, run.ports, run.volumes) == ("vllm-a", ("8001:8000",), ("/models:/cache",))
    assert run.env == {"A": "1", "B": "x=y", "C": None}
    assert run.flags == ("--rm", "--gpus=all", "--ipc=host", "--ulimit=memlock=-1")
    assert run.unknown == ()


@pytest.mark.parametrize(
    ("line", "flags", "ports", "env"),
    [
        ("docker run -it img", ("--interactive", "--tty"), (), {}),
        ("docker run -dp8001:8000 img", ("--detach",), ("8001:8000",), {}),
        ("docker run -p=8001:8000 -eA=1 img", (), ("8001:8000",), {"A": "1"}),
        ("docker run --env=A=1 --publish 80:81 img", (), ("80:81",), {"A": "1"}),
        ("docker run --rm=false --net host img", ("--rm=false", "--network=host"), (), {}),
        ("docker run -d -- img", ("--detach",), (), {}),
        ("sudo docker container run --init img", ("--init",), (), {}),
        ("docker --context spark run --init img", ("--init",), (), {}),
        ("--ipc=host img", ("--ipc=host",), (), {}),
    ],
)
def test_every_way_of_writing_a_flag(line: str, flags: tuple[str, ...], ports: tuple[str, ...], env: object) -> None:
    run = read(line)
    assert (run.flags, run.ports, run.env, run.image) == (flags, ports, env, "img")


def test_a_flag_that_docker_does_not_have_is_named_and_the_image_still_found() -> None:
    run = read("docker run --gpuss all --ipc=host img serve")
    assert (run.unknown, run.image, run.command) == (("--gpuss",), "img", ("serve",))


def test_a_line_without_an_image() -> None:
    assert read("docker run --rm").image is None
    assert read("").image is None


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("8001:8000", (8001, 8000)),
        ("127.0.0.1:8001:8000/tcp", (8001, 8000)),
        ("8000", (None, 8000)),
        ("8000-8002:8000-8002", (None, None)),
        ("", (None, None)),
        ("[::1]:8001:8000", (8001, 8000)),
        ("8001:8000/udp", (None, None)),
    ],
)
def test_published_ports(text: str, ports: tuple[int | None, int | None]) -> None:
    assert published_ports(text) == ports


def test_the_port_of_the_host_follows_from_the_mapping_unless_the_network_is_the_hosts() -> None:
    assert read("docker run -p 8001:8000 img").host_port(8000) == 8001
    assert read("docker run -p 8001:8000 img").host_port(9000) == 9000
    assert read("docker run --network host -p 8001:8000 img").host_port(8000) == 8000


@pytest.mark.parametrize("line", ["docker ps", "docker exec a run", "vllm serve m", "", "sudo", "docker"])
def test_other_commands_are_not_a_docker_run(line: str) -> None:
    assert not is_docker_run(shlex.split(line))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--ipc=host img", "'img' is no flag of `docker run`; the image and its command have keys of their own"),
        ("--shm-size", "'--shm-size' has no value"),
        ("-Z", "'-Z' is no flag of `docker run`"),
        ("--label 'a", "a quote is never closed"),
        ("--ipc=host -it --gpus all", None),
        ("", None),
        (None, None),
    ],
)
def test_what_is_wrong_with_the_flags_of_a_launch_block_is_said(text: str | None, problem: str | None) -> None:
    assert read_docker_flags(text).problem == problem


def test_the_last_of_a_flag_counts_where_docker_takes_one() -> None:
    run = read("docker run --name a --name b --entrypoint sh --entrypoint '' --network x --network host img")
    assert (run.name, run.entrypoint, run.network) == ("b", "", "host")


WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["docker", "run", "-it", "-p", "8001:8000", "-eA=1", "--", "-", "--env", "--rm", "img", "--x=1", "--gpus"]
        ),
        st.text(max_size=6),
    ),
    max_size=12,
)


@given(WORDS)
def test_any_words_are_read_and_none_of_the_command_is_lost(words: list[str]) -> None:
    run = read_docker_run(words)
    assert list(run.command) == (words[len(words) - len(run.command) :])
    assert run.image is None or run.image in words
