"""A program as users write them: nothing in it is wrong, and a type checker must agree."""

import os
import tempfile

import numpy as np

import thalweg as tf

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_integer("steps", 2, "how many")

rng = np.random.default_rng(0)
images = rng.standard_normal((64, 8, 8, 1)).astype(np.float32)
targets = rng.integers(0, 3, 64)


def convolutional(x: tf.Tensor, is_training: tf.Tensor) -> tf.Tensor:
    """Layers of every sort."""
    with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
        h = tf.layers.conv2d(x, 4, [3, 3], padding="same", activation=tf.nn.relu)
        h = tf.layers.batch_normalization(h, training=is_training)
        h = tf.layers.max_pooling2d(h, 2, 2)
        h = tf.layers.dropout(tf.layers.flatten(h), rate=0.25, training=is_training)
        size = h.get_shape()[-1].value
        w = tf.get_variable(
            "w", [size, 16], initializer=tf.truncated_normal_initializer(stddev=0.1)
        )
        b = tf.get_variable("b", shape=(16,), dtype=tf.float32, initializer=tf.zeros_initializer())
        h = tf.nn.relu(tf.matmul(h, w) + b, name="hidden")
        return tf.layers.dense(h, 3, kernel_regularizer=tf.contrib.layers.l2_regularizer(1e-4))


def by_hand(x: tf.Tensor) -> tf.Tensor:
    """The same with ops."""
    kernel = tf.Variable(tf.random_normal([3, 3, 1, 4], stddev=0.1), name="kernel")
    h = tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME")
    h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    h = tf.reshape(h, [-1, int(np.prod(h.shape.as_list()[1:]))])
    h = tf.nn.dropout(tf.nn.tanh(h), keep_prob=0.9)
    scale = tf.Variable(1.0, trainable=False)
    return -h * scale / 2 + np.float32(1) - [0.5] * 4 * 16 + tf.cast(tf.range(64), tf.float32)


x = tf.placeholder(tf.float32, shape=[None, 8, 8, 1], name="x")
y = tf.placeholder("int64", [None])
is_training = tf.placeholder_with_default(False, shape=())
logits = convolutional(x, is_training)
features = by_hand(x)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
loss += tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))
loss += 1e-3 * tf.reduce_sum(features**2) + tf.losses.get_regularization_loss()
correct = tf.equal(tf.argmax(logits, 1), y)
accuracy = tf.reduce_mean(tf.cast(correct, tf.float32), name="accuracy")
values, indices = tf.nn.top_k(logits, k=2, sorted=True)
total = tf.concat([values, tf.to_float(indices)], axis=1) @ tf.ones([4, 1])
first = tf.stack([total[0], total[..., 0][1:2]], axis=0)

global_step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, global_step, 100, 0.96, staircase=True)
optimizer = tf.train.AdamOptimizer(learning_rate=rate, beta1=0.9)
gradients = optimizer.compute_gradients(loss, var_list=tf.trainable_variables())
clipped = [(tf.clip_by_norm(g, 1.0), v) for g, v in gradients if g is not None]
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train = optimizer.apply_gradients(clipped, global_step=global_step)
other = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
grads = tf.gradients(loss, [x])

mean, update = tf.metrics.accuracy(labels=y, predictions=tf.argmax(logits, axis=1))
cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(5) for _ in range(2)])
outputs, state = tf.nn.dynamic_rnn(cell, tf.reshape(x, [-1, 8, 8]), dtype=tf.float32)
counted = tf.while_loop(lambda i: tf.less(i, 10), lambda i: tf.add(i, 1), [tf.constant(0)])
chosen = tf.cond(loss > 0, lambda: tf.zeros([]), lambda: tf.ones([]))

tf.summary.scalar("loss", loss)
tf.summary.histogram("logits", logits)
merged = tf.summary.merge_all()

dataset = tf.data.Dataset.from_tensor_slices({"image": images, "label": targets})
dataset = dataset.shuffle(64, seed=1).repeat().batch(16).prefetch(1)
dataset = dataset.map(lambda row: (row["image"] * 2, row["label"]), num_parallel_calls=2)
batch_x, batch_y = dataset.make_one_shot_iterator().get_next()


sparse = tf.sparse_placeholder(tf.float32, [None, 4])
product = tf.sparse_tensor_dense_matmul(sparse, tf.ones([4, 2])) + tf.sparse_reduce_sum(sparse)
same = tf.cast(sparse, tf.float64).values[:1]
lengths, vectors = tf.linalg.eigh(tf.eye(3))
singular = tf.svd(tf.eye(3), compute_uv=False)[..., tf.newaxis, 0]
weights = tf.Variable(np.zeros((3, 3), np.float32), name="weights")
scaled = abs(-weights) * 2 + weights[0, 1:] - weights @ tf.ones([3, 3])
changed = weights.assign_add(tf.ones([3, 3])).op
normal = tf.distributions.Normal(loc=[0.0, 1.0], scale=np.float32(2))
drawn = normal.sample([3], seed=1)
tail = tf.strided_slice(drawn, [0], [2])[tf.constant(0)]
queue = tf.FIFOQueue(3, [tf.float32, tf.int32], shapes=[[2], []])
filled = tf.group(queue.enqueue(([1.0, 2.0], 3)), changed)
folded = tf.foldl(lambda a, b: a + b, np.arange(4.0))
mapped = tf.map_fn(lambda pair: pair[0] * pair[1], (tf.ones([3]), tf.zeros([3])), dtype=tf.float32)
cases = tf.case([(tf.less(loss, 1.0), lambda: tf.ones([]))], default=lambda: tf.zeros([]))
counter = tf.contrib.lookup.index_table_from_tensor(["a", "b"], num_oov_buckets=1)
found = counter.lookup(tf.constant(["b", "c"])) + 1
example = tf.train.Example(
    features=tf.train.Features(
        feature={
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2])),
            "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"])),
        }
    )
)
serialized = example.SerializeToString()
kept = example.features.feature["label"].int64_list.value[0] + 1
tf.add_to_collection("mine", {"any": "object"})
tf.add_to_collection(tf.GraphKeys.LOSSES, loss)


class Counter(tf.train.SessionRunHook):
    """A hook with its own types."""

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        """Ask for the step."""
        return tf.train.SessionRunArgs(global_step)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        """Look at it."""
        if run_values.results > 10:
            run_context.request_stop()


def configured() -> None:
    """Messages, fields set and read."""
    config = tf.ConfigProto(device_count={"CPU": 2}, intra_op_parallelism_threads=1)
    config.gpu_options.allow_growth = True
    config.gpu_options.per_process_gpu_memory_fraction = 0.5
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    metadata = tf.RunMetadata()
    with tf.device("/cpu:0"), tf.Session(config=config) as sess:
        result = sess.run({"loss": loss, "all": [x, (y, "x:0")]}, None, options, metadata)
        print(result["loss"], len(sess.plan(loss, {x: images, y: targets}).kernels))
    nodes = [node.name for node in tf.get_default_graph().as_graph_def().node]
    summary = tf.Summary(value=[tf.Summary.Value(tag="loss", simple_value=0.5)])
    print(nodes[0], summary.value[0].tag, tf.get_default_session().run(loss))


def main(_: list[str]) -> None:
    """Train, save, restore."""
    saver = tf.train.Saver(max_to_keep=2)
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    with tf.Session(config=config) as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        writer = tf.summary.FileWriter(os.path.join(tempfile.gettempdir(), "logs"), sess.graph)
        for step in range(FLAGS.steps):
            bx, by = sess.run([batch_x, batch_y])
            feed = {x: bx, y: by, is_training: True}
            _, value, text = sess.run([train, loss, merged], feed_dict=feed)
            writer.add_summary(text, global_step=step)
            print(f"{step}: {value:.3f}", accuracy.eval({x: bx, y: by}, session=sess))
        path = saver.save(sess, os.path.join(tempfile.mkdtemp(), "model"), global_step=global_step)
        saver.restore(sess, path)
        print(tf.train.latest_checkpoint(os.path.dirname(path)), tf.train.list_variables(path))
        writer.close()
    try:
        with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(1)]) as monitored:
            monitored.run(other, feed_dict={x: images, y: targets})
    except tf.errors.InvalidArgumentError as error:
        tf.logging.warning("failed: %s", error.message)


@tf.function
def squared(a: tf.Tensor) -> tf.Tensor:
    """A traced function."""
    return tf.square(a)


def eager() -> None:
    """What code does in eager mode."""
    w = tf.Variable([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        out = tf.reduce_sum(squared(w * 3) + tf.sqrt(4.0))
    print(out.numpy(), float(out), tape.gradient(out, w))
    w.assign_sub(0.1 * tf.ones_like(w))
    for row in w.read_value():
        print(row.numpy().tolist(), len(row.shape), row.dtype == tf.float32)


if __name__ == "__main__":
    tf.app.run(main)
