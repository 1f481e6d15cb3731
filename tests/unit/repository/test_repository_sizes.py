"""The size check finds what is too long, in Python and in C++."""

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
    assert dict(check_sizes.cpp_functions(source)) == {"Pool": 1, "get": 6, "scale": 4, "run": 3}


def test_long_file_and_long_function_are_reported(check_sizes: ModuleType, tmp_path: Path) -> None:
    body = "    x = 1\n" * 60
    (tmp_path / "long.py").write_text(f"def f():\n{body}" + "y = 2\n" * 340)
    (tmp_path / "long.cpp").write_text("int f() {\n" + "g();\n" * 59 + "}\n")
    found = [each for name in ("long.py", "long.cpp") for each in check_sizes.excesses(tmp_path / name, tmp_path)]
    assert found == [("long.py", 401, 400), ("long.py:f", 61, 60), ("long.cpp:f", 61, 60)]


def test_short_file_passes(check_sizes: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("def f():\n" + "    x = 1\n" * 59)
    assert list(check_sizes.excesses(tmp_path / "short.py", tmp_path)) == []
