"""Sonnet 1.36: not below `tf.`, but mended."""

from thalweg.alias.libraries.library import Library, Patch, outdated

LIBRARY = Library(
    package="sonnet",
    requirement="dm-sonnet==1.36",
    extra="sonnet",
    places={},
    patches=[
        *outdated("sonnet"),
        Patch(
            "sonnet.*",
            r"import tensorflow_probability as tfp",
            "from thalweg.alias.inside.training import probability as tfp",
            "it takes normal distributions alone from that package, which TensorFlow 1 has too",
        ),
        Patch(
            "sonnet",
            r"(?m)^_ensure_dependency_available_at_version\((?=[^)]*tensorflow_probability)",
            "(lambda *args, **kwargs: None)(",
            "it does not need that package then",
        ),
        Patch(
            "sonnet.protos.module_pb2",
            r"(?s)DESCRIPTOR = _descriptor\.FileDescriptor\(.*?serialized_pb=(_b\(.*?'\))\n\).*",
            "from google.protobuf import descriptor_pool; "
            "from google.protobuf.internal import builder; "
            r"DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(\1); "
            "builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals()); "
            "builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())",
            "protobuf 4 makes messages of the description alone",
        ),
    ],
)
