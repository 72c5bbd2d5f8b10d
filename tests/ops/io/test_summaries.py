"""Summaries: bytes equal to protobuf's, with the summarised values."""

import io
import wave
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import thalweg as tf
from thalweg.graph.graphdef.importer import import_graph_def
from thalweg.ops.io import summaries

Summary: Any = tf.Summary


def run(make: Any) -> Any:
    """The Summary of an op; asserts that its bytes equal those of the message."""
    with tf.Graph().as_default(), tf.Session() as session:
        written = session.run(make())
    parsed = Summary.FromString(written)
    assert parsed.SerializeToString(deterministic=True) == written
    return parsed


def only(make: Any) -> Any:
    (value,) = run(make).value
    return value


# Scalars


def test_scalars() -> None:
    summary = run(lambda: summaries.ScalarSummary()(["a", "b"], [0.0, 2.5]))
    assert [(value.tag, value.simple_value) for value in summary.value] == [("a", 0.0), ("b", 2.5)]
    assert all(value.WhichOneof("value") == "simple_value" for value in summary.value)


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float64, tf.int8, tf.uint8, tf.int64]
)
def test_scalars_of_every_kind(dtype: Any) -> None:
    assert only(lambda: summaries.ScalarSummary()("a", tf.constant(3, dtype))).simple_value == 3


@pytest.mark.filterwarnings("error")
def test_a_scalar_out_of_range_of_float32_is_infinite() -> None:
    value = only(lambda: summaries.ScalarSummary()("a", np.float64(1e300)))
    assert value.simple_value == np.inf


def test_scalars_need_a_value_per_tag() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[\] != \[1\] \(tag 'a'\)"):
        run(lambda: summaries.ScalarSummary()("a", [1.0]))


def test_scalars_are_real() -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError, match="complex64"):
        summaries.ScalarSummary()("a", tf.constant(1j, tf.complex64))


# Histograms


def plain_histogram(values: Any) -> tuple[list[float], list[float]]:
    """The definition: each value is counted in the first bucket whose end is above it."""
    limits = summaries.bucket_limits().tolist()
    counts = [0.0] * len(limits)
    for value in values:
        counts[next((i for i, limit in enumerate(limits) if value < limit), -1)] += 1
    kept = [i for i, n in enumerate(counts) if n or i + 1 == len(counts) or counts[i + 1]]
    return [limits[i] for i in kept], [counts[i] for i in kept]


@given(
    arrays(
        np.float32,
        st.integers(0, 8),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_histograms_match_the_definition(values: Any) -> None:
    histogram = only(lambda: summaries.HistogramSummary()("h", values)).histo
    limits, counts = plain_histogram(values.tolist())
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == (limits, counts)
    assert histogram.num == len(values)
    if len(values):
        assert (histogram.min, histogram.max) == (values.min(), values.max())
        assert histogram.sum == pytest.approx(values.astype(float).sum())
        assert histogram.sum_squares == pytest.approx(np.square(values.astype(float)).sum())


def test_an_empty_histogram() -> None:
    histogram = only(lambda: summaries.HistogramSummary()("h", np.zeros(0, np.float32))).histo
    largest = np.finfo(np.float64).max
    assert (histogram.min, histogram.max, histogram.num) == (largest, -largest, 0)
    assert (list(histogram.bucket_limit), list(histogram.bucket)) == ([largest], [0])


def test_the_largest_number_has_a_bucket() -> None:
    histogram = only(lambda: summaries.HistogramSummary()("h", np.array([1.7976931348623157e308])))
    assert list(histogram.histo.bucket) == [0, 1]


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float64, tf.int16, tf.uint8, tf.int64]
)
def test_histograms_of_every_kind(dtype: Any) -> None:
    def summary() -> Any:
        return summaries.HistogramSummary()("h", tf.constant([[1, 2], [2, 3]], dtype))

    histogram = only(summary).histo
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("bad", "word"), [(np.nan, "Nan"), (np.inf, "Infinity"), (-np.inf, "Infinity")]
)
def test_histograms_are_of_finite_values(bad: float, word: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{word} in summary histogram for: x"):
        run(lambda: summaries.HistogramSummary()("h", np.array([1.0, bad, 2.0]), name="x"))


def test_a_histogram_has_one_tag() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="tags must be scalar"):
        run(lambda: summaries.HistogramSummary()(["h"], [1.0]))


# Images


def pixels(value: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.image.decode_png(value.image.encoded_image_string))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_of_bytes_are_kept(channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 7, channels)).astype(np.uint8)
    summary = run(lambda: summaries.ImageSummary()("i", images))
    assert [value.tag for value in summary.value] == ["i/image/0", "i/image/1", "i/image/2"]
    image = summary.value[1].image
    assert (image.height, image.width, image.colorspace) == (5, 7, channels)
    np.testing.assert_array_equal(pixels(summary.value[1]), images[1])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 2.0], [0, 63, 255]),
        ([-1.0, 0.0, 0.5], [1, 128, 191]),
        ([0.0, 1e-7, 1e-8], [0, 0, 0]),
        ([-1e-7, 0.0, 1e-7], [128, 128, 128]),
        ([np.nan, 1.0, 0.0], [255, 255, 0]),
        ([np.inf, -np.inf, np.nan], [255, 255, 255]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_images_of_floats_are_scaled(values: Any, expected: Any, dtype: Any) -> None:
    image = np.array(values, dtype).reshape(1, 1, 3, 1)
    value = only(lambda: summaries.ImageSummary(max_images=1)("i", image))
    assert value.tag == "i/image"
    assert pixels(value).ravel().tolist() == expected


def test_the_colour_of_non_finite_pixels() -> None:
    image = np.array([[[[1, np.nan, 1], [1, 1, 1]]]], np.float32)
    blue = np.array([1, 2, 250], np.uint8)
    value = only(lambda: summaries.ImageSummary(max_images=1, bad_color=blue)("i", image))
    assert pixels(value).tolist() == [[[1, 2, 250], [255, 255, 255]]]


def test_a_short_bad_colour() -> None:
    op = summaries.ImageSummary(bad_color=np.array([1], np.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected depth <= bad_color"):
        run(lambda: op("i", np.zeros((1, 2, 2, 3), np.float32)))


@pytest.mark.parametrize("shape", [(2, 2, 3), (1, 2, 2, 2), (1, 0, 2, 3)])
def test_shapes_that_are_not_images(shape: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(lambda: summaries.ImageSummary()("i", np.zeros(shape, np.float32)))


def test_an_empty_batch_of_images() -> None:
    assert not run(lambda: summaries.ImageSummary()("i", np.zeros((0, 2, 2, 3), np.uint8))).value


def test_max_images_must_be_positive() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="at least minimum 1"):
        summaries.ImageSummary(max_images=0)("i", np.zeros((1, 2, 2, 3), np.uint8))


def test_image_ops_are_values() -> None:
    one, other = summaries.ImageSummary(), summaries.ImageSummary(bad_color=np.zeros(4, np.uint8))
    assert one == summaries.ImageSummary()
    assert hash(one) == hash(summaries.ImageSummary())
    assert one != other


def test_image_summaries_can_be_exported_and_imported() -> None:
    with tf.Graph().as_default() as graph:
        tf.summary.image("i", np.zeros((1, 2, 2, 3), np.uint8))
    with tf.Graph().as_default() as copy:
        import_graph_def(graph.as_graph_def(), name="")
    assert copy.get_operation_by_name("i").op == graph.get_operation_by_name("i").op


# Sounds


@pytest.mark.parametrize("channels", [None, 1, 2, 5])
def test_sounds(channels: int | None) -> None:
    shape = (2, 7) if channels is None else (2, 7, channels)
    sounds = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    summary = run(lambda: summaries.AudioSummaryV2()("s", sounds, 8000.0))
    assert [value.tag for value in summary.value] == ["s/audio/0", "s/audio/1"]
    audio = summary.value[1].audio
    assert (audio.sample_rate, audio.num_channels, audio.length_frames) == (8000, channels or 1, 7)
    assert audio.content_type == "audio/wav"
    with wave.open(io.BytesIO(audio.encoded_audio_string)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (
            8000,
            channels or 1,
            7,
        )
        samples = np.frombuffer(file.readframes(7), "<i2").reshape(shape[1:])
    np.testing.assert_allclose(samples / 32768, sounds[1], atol=1 / 32768)


def test_samples_round_away_from_zero_and_stay_in_range() -> None:
    samples = np.array([[0.5], [-0.5], [1.4], [40000], [-40000], [np.nan]], np.float32)
    file = summaries.wave_file(samples / np.float32(32768), 1)
    data = np.frombuffer(file[44:], "<i2").tolist()
    assert data == [1, -1, 1, 32767, -32768, 0]


def test_the_older_sound_summary() -> None:
    op = summaries.AudioSummary(sample_rate=44100.0, max_outputs=1)
    value = only(lambda: op("s", np.zeros((2, 3), np.float32)))
    assert (value.tag, value.audio.sample_rate) == ("s/audio", 44100)


@pytest.mark.parametrize(
    ("shape", "rate", "words"),
    [
        ((3,), 1.0, "Tensor must be 3-D or 2-D"),
        ((1, 3), 0.0, "sample_rate must be > 0"),
        ((1, 3), np.nan, "sample_rate must be > 0"),
        ((1, 3), np.inf, "too many for a WAV file"),
        ((1, 3, 0), 1.0, "1 to 65535 channels"),
    ],
)
def test_invalid_sounds(shape: Any, rate: float, words: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        run(lambda: summaries.AudioSummaryV2()("s", np.zeros(shape, np.float32), rate))


def test_max_outputs_must_be_positive() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="at least minimum 1"):
        summaries.AudioSummaryV2(max_outputs=0)("s", np.zeros((1, 2), np.float32), 1.0)


# Tensors


@pytest.mark.parametrize(
    "value",
    [
        np.float32(10),
        np.ones((2, 0, 3)),
        np.array([True, False]),
        np.array([[1, 2], [3, 4]], np.int64),
        np.array([1 + 2j], np.complex64),
        np.array([[b"a", b""], [b"\xff", b"dd"]], object),
        b"word",
    ],
)
def test_tensors(value: Any) -> None:
    first = only(lambda: summaries.TensorSummary()(value, name="n"))
    second = only(lambda: summaries.TensorSummaryV2()("t", value, b"", name="m"))
    assert (first.node_name, first.tag) == ("n", "")
    assert (second.node_name, second.tag) == ("m", "t")
    for summary in (first, second):
        np.testing.assert_array_equal(tf.make_ndarray(summary.tensor), value)
        assert tf.make_ndarray(summary.tensor).shape == np.shape(value)


def test_metadata_of_tensors() -> None:
    metadata: Any = tf.SummaryMetadata(display_name="shown")
    value = only(lambda: summaries.TensorSummaryV2()("t", [1], metadata.SerializeToString()))
    assert value.metadata == metadata


# Merging


def test_merging_concatenates_values() -> None:
    def merged() -> Any:
        scalars = summaries.ScalarSummary()(["a", "b"], [1.0, 2.0])
        histogram = summaries.HistogramSummary()("h", [1.0])
        nameless = [summaries.TensorSummary()([1], name="n") for _ in range(2)]
        return summaries.MergeSummary()([tf.stack([scalars, histogram]), *nameless])

    assert [value.tag for value in run(merged).value] == ["a", "b", "h", "", ""]


def test_tags_must_be_distinct() -> None:
    def merged() -> Any:
        return summaries.MergeSummary()([summaries.ScalarSummary()("a", x) for x in (1.0, 2.0)])

    with pytest.raises(tf.errors.InvalidArgumentError, match="Duplicate tag a found"):
        run(merged)


@pytest.mark.parametrize(
    "bad", [b"\x0a\x05abc", b"\x0a", b"\xff" * 20, b"\x0b", b"\x0a\x02\x0a\x05"]
)
def test_merging_invalid_summaries(bad: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse"):
        run(lambda: summaries.MergeSummary()([tf.constant(bad)]))
