"""Which libraries are tried, where their sources and tests lie, and what is left out, and why."""

from typing import NamedTuple


class Library(NamedTuple):
    """A library: its folder below the one given, and patterns of its test files in it.

    `left_out` are tests that cannot pass for reasons outside of TensorFlow and Thalweg, by regular
    expressions for their names, each with its reason.
    """

    folder: str
    tests: tuple[str, ...]
    root: str = ""  # what is put on the path, below the folder
    left_out: tuple[tuple[str, str], ...] = ()
    package: str = ""  # imported first: pytest would import it without its patches


_DOWNLOADS = "downloads data"
_NO_GPU = "needs a GPU"
_THEANO = "compares with Theano, which nobody has"
_KERAS = (
    ("integration_tests", _DOWNLOADS),
    ("test_documentation", "checks the documentation's own sources"),
    ("test_doc_auto_generation", "checks the documentation's own sources"),
    ("test_data_utils", _DOWNLOADS),
    (r"test_api\.py", _THEANO),
    ("multi_gpu", _NO_GPU),
    ("cudnn", _NO_GPU),
    ("test_in_top_k", "counts on the order in which NumPy 1 sorted equal numbers"),
    (
        r"test_(h5dict|H5Dict)_(attrs|groups)|saving_to_(pre_created_h5py_file|binary_stream)",
        "needs h5py 2",
    ),
    (
        r"test_(ordered_enqueuer|on_epoch_end)_processes|test_context_switch",
        "starts interpreters anew, in which pytest has prepared nothing",
    ),
)

#: Errors that Python, NumPy and the libraries' own requirements of today make, by their message.
BROKEN = (
    (
        r"'NoneType' .* attribute '(placeholder|variable|eval|resize_images|th_\w+)'",
        _THEANO,
    ),
    (r"scipy' has no attribute 'misc'", "needs an older SciPy"),
    (r"exceptions must be derived from Warning", "needs an older pytest"),
    (r"'dict' object has no attribute 'iteritems'", "needs Python 2"),
    (r"_ArrayFunctionDispatcher' object has no attribute '__code__'", "needs NumPy 1"),
    (r"could not determine a constructor for the tag", "needs PyYAML 3"),
    (r"Failed to import `pydot`|`pydot` failed to call GraphViz", "needs Graphviz"),
    (
        r"only 0-dimensional arrays|'tostring'|value of an empty array|setting an array element",
        "needs NumPy 1",
    ),
)

#: Why tests fail that count as failed all the same, by regular expressions for their names.
GROUNDS = (
    (r"test_selu\b", "compares the last bit, of which Thalweg's is the nearer one"),
    (
        r"test_ctc_decode_beam_search",
        "expects the scores of an older TensorFlow; Keras 2.3.1 expects those of Thalweg",
    ),
    (
        r"test_topology\.test_recursion",
        "expects matrices where a rank is unknown; tf.matmul of TensorFlow 1.15 takes batches",
    ),
    (r"testGradientNoise", "counts on how many nodes TensorFlow makes before a random one"),
    (r"F1ScoreTest\.testSomeCorrect", "TensorFlow 2.21 fails it by the same last bit"),
    (
        r"testAtrousFullyConvolutionalValues",
        "a difference of numbers near 300 is right to 6 digits of these, not to 4 of its own",
    ),
)

LIBRARIES = (
    Library("keras-2.2.4", ("tests/**/*test*.py",), left_out=_KERAS),
    Library("keras-2.3.1", ("tests/**/*test*.py",), left_out=_KERAS),
    Library("tf-slim-1.1.0", ("tf_slim/**/*_test.py",)),
    Library(
        "models",
        ("research/slim/nets/**/*_test.py",),
        root="research/slim",
        left_out=(
            ("quantization", "needs contrib.quantize"),
            ("mobilenet_v3_test", "imports a test library that Google has not published"),
        ),
    ),
    Library(
        "sonnet-1.36",
        ("sonnet/**/*_test.py",),
        package="sonnet",
        left_out=(("testModuleInfo_multiple_modules", "counts on being the main program"),),
    ),
    Library("bert", ("*_test.py",)),
    Library("gpt-2", ("smoke_test.py",), root="src"),
)
