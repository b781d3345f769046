"""The direction of imports, by reading the source: data flows one way, nothing imports upward."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Every module of both packages, lowest first. A module imports only modules above it in this list;
# `eagle` imports of synthgen only errors, corpus and client; `synthgen` never imports eagle or torch.
ORDER = [
    "synthgen",
    "synthgen.errors",
    "synthgen.corpus",
    "synthgen.corpus.files",
    "synthgen.corpus.machine",
    "synthgen.corpus.token_ids",
    "synthgen.corpus.lock",
    "synthgen.corpus.records",
    "synthgen.corpus.journal",
    "synthgen.corpus.samples",
    "synthgen.corpus.manifest",
    "synthgen.corpus.verdicts",
    "synthgen.corpus.sections",
    "synthgen.corpus.draft_sections",
    "synthgen.corpus.special_tokens",
    "synthgen.corpus.config",
    "synthgen.corpus.settings",
    "synthgen.corpus.verifier_config",
    "synthgen.corpus.console",
    "synthgen.corpus.torchrun",
    "synthgen.corpus.hub",
    "synthgen.corpus.verifier_files",
    "synthgen.corpus.cards",
    "synthgen.client",
    "synthgen.client.descriptors",
    "synthgen.client.metrics",
    "synthgen.client.control",
    "synthgen.client.replies",
    "synthgen.client.stream",
    "synthgen.client.bodies",
    "synthgen.client.api",
    "synthgen.client.outage",
    "synthgen.client.tether",
    "synthgen.client.launch",
    "synthgen.client.capture",
    "synthgen.mock",
    "synthgen.mock.distributions",
    "synthgen.mock.replies",
    "synthgen.mock.faults",
    "synthgen.mock.presets",
    "synthgen.mock.config",
    "synthgen.mock.engine",
    "synthgen.mock.requests",
    "synthgen.mock.endpoints",
    "synthgen.mock_server",
    "synthgen.sources",
    "synthgen.sources.rows",
    "synthgen.sources.lines",
    "synthgen.sources.tables",
    "synthgen.sources.shapes",
    "synthgen.sources.turns",
    "synthgen.sources.batch",
    "synthgen.sources.hub",
    "synthgen.sources.prompt_file",
    "synthgen.sources.conversations",
    "synthgen.sources.draw",
    "synthgen.sources.spool",
    "synthgen.seeds",
    "synthgen.seeds.overlap",
    "synthgen.seeds.strata",
    "synthgen.seeds.figures",
    "synthgen.seeds.choose",
    "synthgen.seeds.selection",
    "synthgen.seeds.report",
    "synthgen.generate",
    "synthgen.generate.conversation",
    "synthgen.generate.traces",
    "synthgen.generate.limiter",
    "synthgen.generate.pool",
    "synthgen.generate.schedule",
    "synthgen.generate.tally",
    "synthgen.generate.resume",
    "synthgen.generate.panel",
    "synthgen.generate.interrupts",
    "synthgen.generate.harness",
    "synthgen.generate.stage",
    "synthgen.generate.transcript",
    "synthgen.generate.preview",
    "synthgen.screen",
    "synthgen.screen.view",
    "synthgen.screen.loops",
    "synthgen.screen.refusals",
    "synthgen.screen.scripts",
    "synthgen.screen.leaks",
    "synthgen.screen.seen",
    "synthgen.screen.rules",
    "synthgen.screen.stage",
    "synthgen.screen.table",
    "synthgen.render",
    "synthgen.render.renderer",
    "synthgen.render.parts",
    "synthgen.render.stage",
    "synthgen.render.audit",
    "synthgen.render.tables",
    "synthgen.mix",
    "synthgen.mix.shares",
    "synthgen.mix.rows",
    "synthgen.mix.stage",
    "synthgen.export",
    "synthgen.export.rows",
    "synthgen.export.jsonl",
    "synthgen.export.parquet",
    "synthgen.export.counts",
    "synthgen.export.formats",
    "synthgen.export.card",
    "synthgen.export.hub",
    "synthgen.export.stage",
    "synthgen.plan",
    "synthgen.plan.costs",
    "synthgen.plan.stages",
    "synthgen.plan.kept",
    "synthgen.plan.table",
    "synthgen.report",
    "synthgen.report.lookup",
    "synthgen.report.show",
    "synthgen.report.histograms",
    "synthgen.report.throughput",
    "synthgen.report.coverage",
    "synthgen.report.census",
    "synthgen.report.page",
    "synthgen.report.charts",
    "synthgen.report.training",
    "synthgen.report.acceptance",
    "synthgen.report.figures",
    "synthgen.report.sections",
    "synthgen.report.spent",
    "synthgen.report.stage",
    "synthgen.run",
    "synthgen.doctor",
    "synthgen.doctor.findings",
    "synthgen.doctor.packages",
    "synthgen.doctor.machine",
    "synthgen.doctor.server",
    "synthgen.doctor.stage",
    "synthgen.doctor.table",
    "synthgen.commands",
    "synthgen.commands.options",
    "synthgen.commands.doctor",
    "synthgen.commands.serve",
    "synthgen.commands.generate",
    "synthgen.commands.dataset",
    "synthgen.commands.export",
    "synthgen.commands.render",
    "synthgen.commands.run",
    "synthgen.commands.report",
    "synthgen.__main__",
    "eagle",
    "eagle.taps",
    "eagle.tensors",
    "eagle.verifier_tensors",
    "eagle.hub_weights",
    "eagle.verifier",
    "eagle.precision",
    "eagle.states",
    "eagle.shards",
    "eagle.sampling_guard",
    "eagle.no_drafts",
    "eagle.bounded_writer",
    "eagle.spool",
    "eagle.connector",
    "eagle.prefill",
    "eagle.transformers_backend",
    "eagle.patience",
    "eagle.packing",
    "eagle.collect",
    "eagle.extract",
    "eagle.verify_states",
    "eagle.draft_keys",
    "eagle.draft_files",
    "eagle.vocab",
    "eagle.rotary",
    "eagle.attention",
    "eagle.draft",
    "eagle.draft_fit",
    "eagle.draft_config",
    "eagle.draft_view",
    "eagle.draft_standard",
    "eagle.draft_check",
    "eagle.init_from",
    "eagle.batches",
    "eagle.feed",
    "eagle.loss",
    "eagle.muon",
    "eagle.optim",
    "eagle.checkpoint",
    "eagle.on_demand",
    "eagle.stream",
    "eagle.training_log",
    "eagle.parallel",
    "eagle.step",
    "eagle.stop",
    "eagle.validate",
    "eagle.trackers",
    "eagle.watch",
    "eagle.train",
    "eagle.dry_run",
    "eagle.card",
    "eagle.export",
    "eagle.accept",
    "eagle.walk",
    "eagle.accept.bootstrap",
    "eagle.accept.steps",
    "eagle.accept.report",
    "eagle.accept.asker",
    "eagle.accept.servers",
    "eagle.accept.live",
    "eagle.accept.speed",
    "eagle.accept.traps",
    "eagle.accept.visit",
    "eagle.accept.build",
    "eagle.accept.offline",
    "eagle.accept.heldout",
    "eagle.accept.same_tokens",
    "eagle.accept.measure",
    "eagle.accept.stage",
    "eagle.accept.table",
    "eagle.load_gate",
    "eagle.verify_draft",
    "eagle.compare",
    "eagle.compare.choice",
    "eagle.compare.arms",
    "eagle.compare.trained",
    "eagle.compare.live",
    "eagle.compare.report",
    "eagle.compare.plot",
    "eagle.compare.stage",
    "eagle.compare.table",
    "eagle.compare.command",
    "eagle.validation_table",
    "eagle.verify_commands",
    "eagle.__main__",
]

HEAVY = {"torch", "transformers", "vllm", "datasets", "pyarrow", "datasketch", "huggingface_hub"}
SHARED = ("synthgen.errors", "synthgen.corpus", "synthgen.client")


def modules() -> dict[str, Path]:
    """Every module of both packages, by name."""
    found = {}
    for package in ("synthgen", "eagle"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module of a file, and whether the import stands at the top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    inner = {n for f in ast.walk(tree) if isinstance(f, functions) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node not in inner
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: relative import"
            yield node.module, node not in inner
            for alias in node.names:  # `from package import module`
                if f"{node.module}.{alias.name}" in ORDER:
                    yield f"{node.module}.{alias.name}", node not in inner


def test_the_list_names_every_module() -> None:
    """A new module has a place in the order before it is merged."""
    assert sorted(ORDER) == sorted(modules())


def test_a_module_imports_only_modules_above_it() -> None:
    """No module imports one that stands below it, so there is no cycle."""
    for name, path in modules().items():
        for target, _ in imports(path):
            if target in ORDER:
                assert ORDER.index(target) < ORDER.index(name), f"{name} imports {target}, which is below it"


def test_synthgen_needs_neither_torch_nor_eagle() -> None:
    """The harness installs and runs without the trainer."""
    for name, path in modules().items():
        if name.startswith("synthgen"):
            roots = {target.split(".")[0] for target, _ in imports(path)}
            assert not roots & (HEAVY | {"eagle"}), name


def test_eagle_takes_only_the_contract_and_the_client_from_synthgen() -> None:
    """Of synthgen the trainer sees records, settings, errors and the server client."""
    for name, path in modules().items():
        if name.startswith("eagle"):
            for target, _ in imports(path):
                if target.startswith("synthgen"):
                    assert target.startswith(SHARED), f"{name} imports {target}"


def test_only_the_connector_imports_vllm_and_nothing_imports_the_connector() -> None:
    """vLLM is another process: it loads the connector by name."""
    for name, path in modules().items():
        targets = {target for target, _ in imports(path)}
        assert name == "eagle.connector" or not any(t.split(".")[0] == "vllm" for t in targets), name
        assert "eagle.connector" not in targets, name


def test_no_import_stands_inside_a_function() -> None:
    """Imports at the top, so that the order above is the whole truth."""
    for name, path in modules().items():
        assert all(top for _, top in imports(path)), name
