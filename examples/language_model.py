"""A language model over 40,000 words: several workers train it, parameter servers have its tables.

    thalweg launch --ps 2 --workers 3 examples/language_model.py
    thalweg launch --ps 2 --workers 3 examples/language_model.py --softmax full

The text is synthetic: it dwells on one of 16 topics for some 50 words at a time, and each topic has
words of its own, whose frequencies follow Zipf's law. Word w belongs to topic w mod 16, and small
numbers are frequent words. The entropy of such a text is known, so the program prints what loss a
model has that knows nothing, the frequencies alone, and the topic too. The LSTM has to learn both.

The tables of the words' embeddings and of the softmax are cut into one shard for each parameter
server. With --softmax full, each server multiplies by its whole shard in every step; with sampled,
512 words other than the true ones are drawn, and their rows alone are fetched and updated.
"""

import argparse
import json
import os
import time

import numpy as np

import thalweg as tf

TOPICS, DWELL = 16, 50
BATCH, LENGTH, EMBEDDING, HIDDEN = 16, 20, 32, 64


class Source:
    """A text about changing topics."""

    def __init__(self, vocabulary, seed):
        self.weights = 1 / np.arange(1, vocabulary // TOPICS + 1)
        self.weights /= self.weights.sum()
        self.random = np.random.default_rng(seed)

    def batch(self):
        """Some texts: a row of words each, one word longer than the model reads."""
        shape = BATCH, LENGTH + 1
        changes = self.random.random(shape) < 1 / DWELL
        changes[:, 0] = True
        drawn = self.random.integers(TOPICS, size=shape)
        last_change = np.maximum.accumulate(np.where(changes, np.arange(LENGTH + 1), 0), axis=1)
        topics = np.take_along_axis(drawn, last_change, axis=1)
        ranks = self.random.choice(len(self.weights), size=shape, p=self.weights)
        return ranks * TOPICS + topics

    def entropy(self):
        """The best loss of who knows the topic, in nats a word."""
        return -np.sum(self.weights * np.log(self.weights))


def my_task():
    """The cluster, and which of its tasks this process is."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    cluster = tf.train.ClusterSpec(config.get("cluster", {"worker": ["localhost:0"]}))
    task = config.get("task", {"type": "worker", "index": 0})
    return cluster, task["type"], task["index"]


def table(name, rows, columns, shards):
    """A large variable, cut by rows into shards."""
    return tf.get_variable(
        name,
        [rows, columns] if columns else [rows],
        initializer=tf.random_uniform_initializer(-0.05, 0.05),
        partitioner=tf.fixed_size_partitioner(shards),
    )


def lstm(words, vocabulary, shards):
    """What an LSTM makes of each word and those before it."""
    embedding = table("embedding", vocabulary, EMBEDDING, shards)
    inputs = tf.nn.embedding_lookup(embedding, words, partition_strategy="div")
    cell = tf.nn.rnn_cell.BasicLSTMCell(HIDDEN)
    outputs, _ = tf.nn.static_rnn(cell, tf.unstack(inputs, axis=1), dtype=tf.float32)
    return tf.reshape(tf.stack(outputs, axis=1), [-1, HIDDEN])


def full_loss(weights, biases, labels, hidden):
    """The loss of a softmax over all words. Every server looks at its shard: what goes to it are
    hidden vectors, what comes back are two numbers for each of them."""
    sums, scores, first = [], [], 0
    for weight, bias in zip(weights, biases, strict=True):
        with tf.device(weight.device):
            logits = tf.matmul(hidden, weight, transpose_b=True) + bias
            sums.append(tf.reduce_logsumexp(logits, axis=1))
            size = weight.shape[0].value
            place = tf.clip_by_value(labels - first, 0, size - 1)
            score = tf.batch_gather(logits, place[:, tf.newaxis])[:, 0]
            is_here = tf.logical_and(labels >= first, labels < first + size)
            scores.append(tf.where(is_here, score, tf.zeros_like(score)))
            first += size
    return tf.reduce_mean(tf.reduce_logsumexp(tf.stack(sums), axis=0) - tf.add_n(scores))


def sampled_loss(weights, biases, labels, hidden, sampled, vocabulary):
    """The loss over the true words and some others; the rows of these are fetched."""
    return tf.reduce_mean(
        tf.nn.sampled_softmax_loss(
            weights,
            biases,
            tf.cast(labels, tf.int64)[:, tf.newaxis],
            hidden,
            num_sampled=sampled,
            num_classes=vocabulary,
            partition_strategy="div",
        )
    )


def train(server, cluster, index, given):
    shards = cluster.num_tasks("ps") if "ps" in cluster.jobs else 1
    device, is_chief = f"/job:worker/task:{index}", index == 0
    source = Source(given.vocabulary, seed=index + 1)
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        text = tf.placeholder(tf.int32, [BATCH, LENGTH + 1])
        labels = tf.reshape(text[:, 1:], [-1])
        hidden = lstm(text[:, :-1], given.vocabulary, shards)
        weights = table("weights", given.vocabulary, HIDDEN, shards)
        biases = table("biases", given.vocabulary, None, shards)
        loss = test_loss = full_loss(weights, biases, labels, hidden)
        if given.softmax == "sampled":
            sampled = min(given.sampled, given.vocabulary // 2)
            loss = sampled_loss(weights, biases, labels, hidden, sampled, given.vocabulary)
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdagradOptimizer(given.learning_rate)
        train_step = optimizer.minimize(loss, step, colocate_gradients_with_ops=True)
    tests = [Source(given.vocabulary, seed=0).batch() for _ in range(4)]
    hooks = [tf.train.StopAtStepHook(last_step=given.steps)]
    config = tf.ConfigProto(device_filters=["/job:ps", device])  # other workers may come and go
    times = []

    def test(session):
        """The loss on texts that no worker trains on, over all words; it makes no step."""
        return np.mean([session.run(test_loss, {text: each}) for each in tests])

    with tf.train.MonitoredTrainingSession(
        server.target, is_chief, hooks=hooks, config=config
    ) as session:
        next_test = 0
        while not session.should_stop():
            batch, began = source.batch(), time.perf_counter()
            at, _ = session.run([step, train_step], {text: batch})
            times.append(time.perf_counter() - began)
            if is_chief and at >= next_test:
                next_test = at + given.test_every
                found = session.run_step_fn(lambda context: test(context.session))
                print(f"step {at}: loss {found:.2f}")
    if is_chief:  # the servers have the model: another session goes on with it
        with tf.Session(server.target, config=config) as session:
            print(f"in the end: loss {test(session):.2f}")
    print(f"{1e3 * np.median(times):.1f} ms a step with a {given.softmax} softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--softmax", choices=["sampled", "full"], default="sampled")
    parser.add_argument("--sampled", type=int, default=512, help="words that are drawn in a step")
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--steps", type=int, default=3000, help="of all workers together")
    parser.add_argument("--test-every", type=int, default=500)
    given = parser.parse_args()
    cluster, job, index = my_task()
    server = tf.train.Server(cluster, job, index)
    if job == "ps":
        server.join()
    if index == 0:
        best = Source(given.vocabulary, seed=0).entropy()
        chance, frequencies = np.log(given.vocabulary), best + np.log(TOPICS)
        print(f"loss by chance {chance:.2f}, by frequencies {frequencies:.2f}, by topic {best:.2f}")
    train(server, cluster, index, given)


if __name__ == "__main__":
    main()
