"""Members of the core classes that programs for TensorFlow 1.x use."""

import pytest

import thalweg as tf

MEMBERS = {
    "Dimension": """
        value assert_is_compatible_with is_compatible_with merge_with __int__ __index__ __hash__
        __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __floordiv__ __mod__ __rmod__
        __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    """,
    "TensorShape": """
        dims ndims rank as_list as_proto num_elements concatenate is_fully_defined merge_with
        assert_has_rank assert_is_compatible_with assert_is_fully_defined assert_same_rank
        is_compatible_with most_specific_compatible_shape with_rank with_rank_at_least
        with_rank_at_most __bool__ __eq__ __ne__ __getitem__ __iter__ __len__ __hash__ _dims
    """,
    "DType": """
        name as_datatype_enum as_numpy_dtype base_dtype real_dtype size min max limits is_bool
        is_complex is_floating is_integer is_numpy_compatible is_quantized is_unsigned
        is_compatible_with __int__ __hash__ _as_ref _is_ref_dtype
    """,
    "DeviceSpec": """
        job replica task device_type device_index from_string merge_from parse_from_string to_string
    """,
    "Graph": """
        collections finalized graph_def_versions seed version add_to_collection add_to_collections
        as_default as_graph_def as_graph_element clear_collection colocate_with container
        control_dependencies create_op device finalize get_all_collection_keys get_collection
        get_collection_ref get_name_scope get_operation_by_name get_operations get_tensor_by_name
        gradient_override_map is_feedable is_fetchable name_scope prevent_feeding prevent_fetching
        unique_name _apply_device_functions
    """,
    "Operation": """
        name type graph device inputs outputs values control_inputs node_def op_def traceback
        colocation_groups get_attr run _id _input_types _update_input
    """,
    "Tensor": """
        name op graph device dtype shape value_index consumers eval get_shape set_shape
        OVERLOADABLE_OPERATORS _shape
    """,
    "SparseTensor": """
        indices values dense_shape dtype graph op shape get_shape eval from_value
    """,
    "IndexedSlices": "values indices dense_shape device dtype graph name op",
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members(name: str) -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 2])
        objects = {
            "Dimension": x.shape[1],
            "TensorShape": x.shape,
            "DType": x.dtype,
            "DeviceSpec": tf.DeviceSpec(),
            "Graph": graph,
            "Operation": x.op,
            "Tensor": x,
            "SparseTensor": tf.SparseTensor([[0]], [1.0], [2]),
            "IndexedSlices": tf.IndexedSlices(x, tf.constant([0])),
        }
    assert isinstance(objects[name], getattr(tf, name))
    assert [member for member in MEMBERS[name].split() if not hasattr(objects[name], member)] == []
