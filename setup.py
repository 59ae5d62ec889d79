"""Packages the loader, and the overlay inside it, so that no file of ours is ever installed over one of torch's."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


ROOT = Path(__file__).parent


class BuildWithOverlay(build_py):
    """Puts manifest.toml and torch/**/*.py under torch_regions/_overlay. An editable install finds them in the repo."""

    def _overlay(self) -> list[tuple[Path, Path]]:
        target = Path(self.build_lib) / "torch_regions" / "_overlay"
        sources = [Path("manifest.toml"), *sorted(Path("torch").rglob("*.py"))]
        return [(source, target / source) for source in sources]

    def run(self) -> None:
        # A build in this folder leaves its files, and those that are gone since would be in the next wheel.
        shutil.rmtree(Path(self.build_lib) / "torch_regions", ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for source, target in self._overlay():
                self.mkpath(str(target.parent))
                self.copy_file(str(ROOT / source), str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        if self.editable_mode:
            return outputs
        return [*outputs, *(str(target) for _, target in self._overlay())]


setup(
    packages=["torch_regions", "torch_regions._report"],
    package_dir={"": "."},
    package_data={"torch_regions": ["py.typed"], "torch_regions._report": ["*.jinja", "schema.json"]},
    cmdclass={"build_py": BuildWithOverlay},
)
