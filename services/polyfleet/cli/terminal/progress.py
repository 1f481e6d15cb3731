"""How `polyfleet serve` shows what it waits for: bars on a terminal, one line per step elsewhere."""

from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from polyfleet.cli.terminal.output import err

PATIENCE = 20  # looks at the fleet


class LoadingView:
    """A context manager; shows steps and, per worker, how much of its model is loaded."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._bars: dict[str, TaskID] = {}
        self._loaded: set[str] = set()
        self._shares: dict[str, float] = {}
        self._step: TaskID | None = None
        self._hindrance, self._times = "", 0

    def say(self, step: str) -> None:
        """Name the step that begins now."""
        if not err.is_terminal:
            err.print(f"{step} …", markup=False)
            return
        if self._step is not None:
            self._progress.remove_task(self._step)
        self._step = self._progress.add_task(step, total=None)

    def hindered(self, problem: str) -> None:
        """Say once what hinders, when it was told so often that it will not pass by itself in a moment."""
        self._times = self._times + 1 if problem == self._hindrance else 1
        self._hindrance = problem
        if problem and self._times == PATIENCE:
            err.print(problem, markup=False)

    @property
    def loaded(self) -> float:
        """How much of their models all workers have loaded, in models."""
        return sum(self._shares.values())

    def loading(self, worker_id: str, deployment: str, progress: float) -> None:
        """A worker has loaded this share (0 to 1) of its model."""
        if worker_id not in self._bars:
            self._bars[worker_id] = self._progress.add_task(f"Loading {deployment}", total=1.0)
        self._shares[worker_id] = progress
        self._progress.update(self._bars[worker_id], completed=progress)
        if progress >= 1.0 and worker_id not in self._loaded and not err.is_terminal:
            err.print(f"Loaded {deployment} ({worker_id})", markup=False)
        if progress >= 1.0:
            self._loaded.add(worker_id)

    def __enter__(self) -> "LoadingView":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()
