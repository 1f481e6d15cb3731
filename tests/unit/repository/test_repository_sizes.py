"""The size check finds what is too long in all that is written by hand, and the repository has nothing that is."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def check_sizes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_sizes", ROOT / "tools" / "check_sizes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_python_functions_are_measured(check_sizes: ModuleType) -> None:
    source = "class A:\n    def f(self):\n        x = 1\n        return x\n\nasync def g(): pass\n"
    assert dict(check_sizes.python_functions(source)) == {"f": 3, "g": 1}


def test_cpp_functions_are_measured(check_sizes: ModuleType) -> None:
    source = """
#define BRACES {{{
namespace kernels {
struct alignas(64) Pool {
    Pool() : size(1) {}
    int get() const noexcept {
        if (size > 0) {
            return size;  // }
        }
        return '}';
    }
    int size;
};
static const int table[] = {
    1, 2,
};
template <class T>
__attribute__((target("avx2"))) static void scale(T *x,
                                                  int n) {
    for (int i = 0; i < n; ++i) { x[i] *= 2; }
}
}  // namespace kernels
extern "C" int run(const char *text) {
    return text == "{";
}
"""
    assert dict(check_sizes.braces_functions(source)) == {"Pool": 1, "get": 6, "scale": 4, "run": 3}


def test_shaders_are_measured(check_sizes: ModuleType) -> None:
    source = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
struct Shape { rows: u32, }
fn scaled(a: f32) -> f32 { return a * 2.0; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x > 1u) {
        return;
    }
}
"""
    assert dict(check_sizes.braces_functions(source)) == {"scaled": 1, "main": 5}


def test_defines_of_templates_are_measured(check_sizes: ModuleType) -> None:
    source = """{{/* end of nothing */}}
{{- define "a.first" -}}
{{- if .x }}
x: {{ with .y }}{{ . }}{{ end }}
{{- end }}
{{- end -}}

{{- define "a.second" }}y{{ end }}
{{- range .z }}
{{- end }}
"""
    assert dict(check_sizes.template_functions(source)) == {"a.first": 5, "a.second": 1}


def test_shell_functions_are_measured(check_sizes: ModuleType) -> None:
    source = "#!/bin/sh\nsay() {\n    if true; then { echo; }; fi\n}\nsay\nfunction two() {\n:\n:\n}\n"
    assert dict(check_sizes.shell_functions(source)) == {"say": 3, "two": 4}


def test_instructions_of_a_dockerfile_are_measured(check_sizes: ModuleType) -> None:
    source = "# RUN nothing\nFROM a AS b\nRUN one \\\n    # why\n    && two \\\n    && three\nCOPY a b\n"
    assert list(check_sizes.docker_instructions(source)) == [("FROM", 1), ("RUN", 4), ("COPY", 1)]


def test_recipes_of_a_makefile_are_measured(check_sizes: ModuleType) -> None:
    source = "A := b\ndefine C\n\t@x\n\t@y\nendef\nall: a b ## All\n\t@one\n\n\t@two\nB ?= c:d\na:\n\t@three\n"
    assert dict(check_sizes.make_recipes(source)) == {"C": 4, "all": 4, "a": 2}


LONG = {
    "long.py": "def f():\n" + "    x = 1\n" * 40,
    "long.cpp": "int f() {\n" + "g();\n" * 39 + "}\n",
    "long.wgsl": "fn f() {\n" + "g();\n" * 39 + "}\n",
    "long.tpl": '{{ define "f" }}\n' + "x: y\n" * 39 + "{{ end }}\n",
    "long.sh": "f() {\n" + ":\n" * 39 + "}\n",
    "Makefile": "f:\n" + "\t@g\n" * 40,
}


@pytest.mark.parametrize("name", LONG)
def test_long_files_and_long_functions_are_reported(check_sizes: ModuleType, tmp_path: Path, name: str) -> None:
    comment = "// x" if name in ("long.cpp", "long.wgsl") else "# x"
    (tmp_path / name).write_text(LONG[name] + f"{comment}\n" * 259 + comment)  # the last line has no end
    assert set(check_sizes.excesses(tmp_path / name, tmp_path)) == {(name, 301, 300), (f"{name}:f", 41, 40)}
    (tmp_path / name).write_text(LONG[name].replace("g", "", 0).replace(LONG[name].splitlines()[1] + "\n", "", 1))
    assert list(check_sizes.excesses(tmp_path / name, tmp_path)) == []


@pytest.mark.parametrize(
    "name", ["values.yaml", "x/templates/_a.tpl", "Dockerfile", "Makefile", "run.sh", "workflow.yml", "a.toml", "a.py"]
)
def test_every_kind_of_file_has_a_limit(check_sizes: ModuleType, tmp_path: Path, name: str) -> None:
    path = tmp_path / ".github" / name
    path.parent.mkdir(parents=True)
    path.write_text("#\n" * 301)
    assert list(check_sizes.sources(tmp_path)) == [path]
    assert [each.lines for each in check_sizes.excesses(path, tmp_path)] == [301]


def test_a_script_is_known_by_its_first_line_and_generated_code_is_left_out(
    check_sizes: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    for name in ("LICENSE", "a_pb2.py", "requirements.lock", "board.json"):
        (tmp_path / name).write_text("x\n")
    assert [path.name for path in check_sizes.sources(tmp_path)] == ["run"]
