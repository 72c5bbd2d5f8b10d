"""Mistakes, each on a line that ends with what is wrong with it. All other lines are right."""

import thalweg as tf

x = tf.placeholder(tf.float32, [None, 4])
images = tf.zeros([2, 8, 8, 3])
kernel = tf.get_variable("kernel", [3, 3, 3, 8])
session = tf.Session()

tf.nn.rleu(x)  # misspelt
tf.placeholdr(tf.float32)  # misspelt
tf.train.AdamOptimiser(0.1)  # misspelt
tf.float23  # misspelt
tf.layers.dens(x, 3)  # misspelt
tf.errors.OutOfRange  # misspelt
tf.graph  # internal
tf.nn.convolutions  # internal
x.get_shpae()  # misspelt
session.runn(x)  # misspelt
tf.train.Saver().restor(session, "model")  # misspelt
tf.data.Dataset.range(3).bach(2)  # misspelt

tf.nn.conv2d(images, kernel, [1, 1, 1, 1], "SAME", nmae="c")  # keyword
tf.layers.dense(x, 3, activaton=tf.nn.relu)  # keyword
tf.reduce_mean(x, axes=1)  # keyword
tf.train.AdamOptimizer(learning_rat=0.1)  # keyword
tf.Session(grph=tf.Graph())  # keyword
tf.placeholder(tf.float32, shapes=[3])  # keyword
tf.Variable(1.0, trainible=False)  # keyword
tf.summary.scalar("loss", tensr=x)  # keyword

tf.matmul(x)  # missing
tf.layers.dense(x)  # missing
tf.train.GradientDescentOptimizer()  # missing
tf.summary.scalar("loss")  # missing
tf.reshape(x)  # missing
session.run()  # missing
tf.train.Saver().save(session)  # missing

tf.nn.relu({"a": x})  # type
tf.matmul(x, None)  # type
tf.reduce_mean(session)  # type
tf.layers.dense(x, "three")  # type
tf.placeholder(tf.float32, shape="abc")  # type
tf.cast(x, dtype=1.5)  # type
tf.Session(graph=x)  # type
tf.name_scope(3)  # type
tf.train.Saver(max_to_keep="five")  # type
tf.train.AdamOptimizer(0.1).minimize(3)  # type
tf.add(x, 1, 2)  # type
session.run(x, feed_dict=[x])  # type
tf.summary.FileWriter(logdir=3)  # type
tf.concat(tf.matmul, axis=0)  # type

config = tf.ConfigProto()
sparse = tf.SparseTensor([[0, 1]], [1.0], [2, 2])
config.gpu_options.alow_growth = True  # misspelt
tf.train.Feature(int64_list=tf.train.BytesList(value=[b"a"]))  # type
tf.train.Int64List(value=["a"])  # type
tf.ConfigProto(allow_soft_placment=True)  # keyword
tf.ConfigProto(device_count=4)  # type
tf.Session(config={"allow_soft_placement": True})  # type
tf.train.MonitoredTrainingSession(config=3)  # type
session.run(3)  # type
session.run([x, session])  # type
tf.train.Saver().save("model", "session")  # type
tf.train.Saver().restore(x, "model")  # type
tf.sparse_tensor_to_dense(x)  # type
tf.nn.conv2d(images, kernel, [1, 1, 1, 1], padding=1)  # type
tf.layers.conv2d(images, 8, kernel_size="3x3")  # type
tf.layers.dense(x, 3, activation=0.5)  # type
tf.variable_scope(x)  # type
tf.get_variable("v", [2], collections=3)  # type
tf.nn.dynamic_rnn(x, x)  # type
tf.metrics.accuracy(labels=session, predictions=x)  # type
tf.losses.mean_squared_error(x, None)  # type
tf.gradients(session, [x])  # type
tf.train.AdamOptimizer(0.1).minimize(x, global_step=3)  # type
tf.distributions.Normal(loc={"mean": 0.0}, scale=1.0)  # type
tf.data.Dataset.from_tensor_slices(session)  # type
tf.FIFOQueue(3, session)  # type
tf.device(3)  # type
x[session]  # type
x + session  # type
tf.Variable(1.0) + session  # type
sparse.valeus  # misspelt
session.plan(x).kernals  # misspelt
