"""What `minigpt train` prints when a run ends: its result and what to do next, or how to resume it."""

from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.cli.options import command_line
from minigpt.cli.render.terminal import note, write
from minigpt.units import duration, shown_perplexity

if TYPE_CHECKING:
    from minigpt.cli.render.training_display import TrainingDisplay
    from minigpt.runs.job import Job
    from minigpt.storage.run import Run
    from minigpt.training.events import Finished


def print_next_steps(job: "Job", checkpoints: Path) -> None:
    """What would make the model better, and a command that tries it: a chat, or words of the training text."""
    from minigpt.autoplan.next_steps import next_steps
    from minigpt.data.records import writes_conversations
    from minigpt.runs.example_prompt import example_prompt

    for step in next_steps(job):
        note(step.text)
        for command in step.commands:
            note(f"  {command_line(*command, checkpoints=checkpoints)}")
    name = job.run.directory.name
    if writes_conversations(job.corpus.tokenizer):
        note("talk to it with:")
        write(command_line("chat", name, checkpoints=checkpoints))
        return
    prompt = example_prompt(job.corpus)
    note("try it with:")
    words = [] if prompt is None else [prompt]
    reading = job.run.record.reading
    if words and reading is not None and reading.special_tokens:
        words.append("--special-tokens")
    write(command_line("generate", *words, "--model", name, checkpoints=checkpoints))


def print_how_to_resume(job: "Job", checkpoints: Path) -> None:
    saved, command = how_to_resume(job.run, checkpoints)
    note(f"stopped: {saved}; continue with:")
    note(command)


def how_to_resume(run: "Run", checkpoints: Path, *options: str) -> tuple[str, str]:
    """What is saved of a run that ended early, and the command that continues from it with these options."""
    from minigpt.runs.resume import last_state, teacher_step, weights_without_state

    directory, command = run.directory, ("--resume", "--name", run.directory.name)
    if (step := weights_without_state(run)) is not None:
        saved, command = (
            f"only the weights of step {step:,} are saved in {directory}",
            ("TEXT", "--from", directory.name),
        )
    elif (step := teacher_step(run)) is not None:
        saved = f"step {step:,} of the teacher is saved in {directory}"
    elif (state := last_state(run)) is not None:
        saved = f"step {state.step:,} is saved in {directory}"
    else:
        saved = "nothing was saved yet"
    return saved, command_line("train", *command, *options, checkpoints=checkpoints)


def discard_run(run: "Run") -> None:
    """Removes the folder of a run that cannot begin to train; `minigpt generate` would take it for the newest."""
    from minigpt.storage.remove_run import find_removable, remove_run

    run.unlock()
    remove_run(find_removable(run.directory.name, run.directory.parent))


def print_result(job: "Job", finished: "Finished", display: "TrainingDisplay", processes: int) -> None:
    """The table of the result: loss, speed, baselines, what the samples copy, and where the model is."""
    from minigpt.cli.render.baselines import result_text
    from minigpt.cli.render.console import console, facts
    from minigpt.evaluation.perplexity import perplexity
    from minigpt.memorization.drawing import samples_text

    log = list(job.run.read_log())
    rows = {"steps": f"{finished.step:,} in {duration(finished.seconds)}", "speed": _speed(job, display, processes)}
    if finished.validation_loss is not None and finished.bits_per_byte is not None:
        rows["best weights"] = f"step {finished.best_step:,}"
        scored, read = job.corpus.scored(job.config.scored_role), finished.validation_tokens
        n_scored = len(job.corpus.validation) - 1 if scored is None else int(scored[1:].sum())  # the first never is
        tokens = f"all {read:,} tokens" if read >= n_scored else f"{read:,} of {n_scored:,} tokens"
        rows["validation loss"] = f"{finished.validation_loss:.4f} nats per token, {tokens}"
        rows["perplexity"] = f"{shown_perplexity(perplexity(finished.validation_loss))} per token"
        rows["bits per byte"] = f"{finished.bits_per_byte:.4f} {job.config.scored_text}".rstrip()
    if baselines := result_text(job.run.record.comparable_evaluations(log), display.baselines, finished):
        rows["baselines"] = baselines
    if copied := samples_text(log):
        rows["copied"] = copied
    rows["saved in"] = _saved(job.run)
    title = {"early stop": "stopped early: the validation loss no longer improves", "diverged": "diverged"}
    console(stderr=False).print(facts(title.get(finished.reason, "done"), rows))


def _saved(run: "Run") -> str:
    """The folder of a run, its size, and the part of it that only resuming needs."""
    from minigpt.storage.model_list import disk_bytes
    from minigpt.units import size

    folders = [run.last_path.parent, run.teacher_path]
    states = sum(map(disk_bytes, folders))
    names = " and ".join(f"{folder.name}/" for folder in folders if disk_bytes(folder))
    kept = f", of it {size(states)} in {names} for --resume" if states else ""
    return f"{run.directory}, {size(disk_bytes(run.directory))}{kept}"


def _speed(job: "Job", display: "TrainingDisplay", processes: int) -> str:
    from minigpt.autoplan.throughput import Peak, peak
    from minigpt.device import resolve_dtype
    from minigpt.lora.fine_tuning import flops_per_token

    if not display.training_seconds:
        return "no step was taken"
    most = peak(display.device, resolve_dtype(job.config.dtype, display.device))
    if processes > 1:  # on a CPU each has its part of the cores
        most = Peak(processes * most.flops, f"{processes} times {most.source}")
    per_token = float(flops_per_token(job.model.config, job.config))
    if job.config.distill == "on":
        per_token *= 4 / 3  # the teacher's forward pass
    rate = display.steps * display.tokens_per_step / display.training_seconds
    return f"{rate:,.0f} tokens/s, {rate * per_token / most.flops:.0%} of this machine's peak ({most.source})"
