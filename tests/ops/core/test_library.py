"""Op libraries are Python files."""

import pytest

import thalweg as tf

SOURCE = '''
from thalweg.ops.core.elementwise import Unary, unary

class TestLibraryTriple(Unary):
    """y = 3 x"""

    def numpy(self, x):
        return x * 3

    def element(self, x):
        return x * 3

    def gradient(self, node, dy):
        return dy * 3.0

triple = unary(TestLibraryTriple)
'''


def test_a_python_file_adds_ops(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(SOURCE)
    library = tf.load_op_library(str(path))
    assert tf.load_op_library(str(path)) is library
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(2.0)
        y = library.triple(x)
        assert session.run([y, *tf.gradients(y, x)]) == [6.0, 3.0]


@pytest.mark.parametrize("name", ["ops.so", "nowhere.py"])
def test_files_that_are_no_libraries(tmp_path, name):
    with pytest.raises(tf.errors.NotFoundError, match=name):
        tf.load_op_library(str(tmp_path / name))
