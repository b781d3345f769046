"""Training on many processes: the same curve as on one, whatever the engine, through stops and kills.

Processes are real ones, talking over gloo on 127.0.0.1. They are forked from a server that has torch
loaded, or started by torchrun itself where its own part is looked at.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from eagle.checkpoint import checkpoints, load_progress
from eagle.train import train
from eagle.training_log import LogLine
from synthgen.corpus.config import RunConfig
from synthgen.corpus.console import exits
from synthgen.corpus.journal import read_journal
from synthgen.corpus.manifest import read_manifest, write_manifest
from synthgen.corpus.settings import save_config
from tests.eagle.tiny import tiny_config, write_run

ROOT = Path(__file__).parent.parent.parent
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.eagle.test_parallel"])
LOG = {"train__log_steps": "1", "train__vocab": ""}
START_S = 120.0


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def train_here(config: RunConfig, environment: dict[str, str]) -> None:
    """What one process of a training does, with what it says kept beside the run."""
    os.environ |= environment
    torch.set_num_threads(1)
    said = os.open(config.run_path / f"said-{environment.get('RANK', '0')}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 2)
    with exits():
        train(config)


def started(config: RunConfig, world: int = 1) -> list[BaseProcess]:
    """A training of `world` processes."""
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    found: list[BaseProcess] = []
    for number in range(world):
        environment = common | {"RANK": str(number), "LOCAL_RANK": str(number)} if world > 1 else {}
        found.append(FORKS.Process(target=train_here, args=(config, environment)))
        found[-1].start()
    return found


def ended(processes: list[BaseProcess]) -> list[int | None]:
    """Their exit codes, once all have ended."""
    for process in processes:
        process.join(START_S)
    return [process.exitcode for process in processes]


def said(config: RunConfig, number: int) -> str:
    return (config.run_path / f"said-{number}").read_text()
