"""torch's own tests of DDP pass with CustomDDP in its place, except those that need native DDP's own API."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.train.ddp.torch_tests import run_torch_tests

TESTS = {
    "training": [
        "test_DistributedDataParallelCPU",
        "test_DistributedDataParallelCPU_grad_is_view",
        "test_DistributedDataParallel_requires_grad",
        "test_DistributedDataParallel_with_amp_and_grad_is_view",
        "test_ddp_zero_output_features",
        "test_ddp_create_graph",
        "test_ddp_inference",
        "test_ddp_namedtuple",
        "test_ddp_forward_backward_hook",
        "test_stateless_api_with_ddp",
    ],
    "no_sync": [
        "test_accumulate_gradients_no_sync",
        "test_accumulate_gradients_no_sync_grad_is_view",
        "test_grads_same_across_ranks_with_no_sync",
    ],
    "unused parameters": [
        "test_ddp_shared_grad_acc_unused_params",
        "test_undefined_grad_parity_unused_parameters",
        "test_output_unused_in_loss_tuple_module",
        "test_output_unused_in_loss_dict_module",
        "test_ddp_returns_tensor_with_no_grad",
        "test_ddp_new_tensor_in_fwd",
        "test_ddp_new_tensor_in_fwd_static_graph",
        "test_ddp_static_graph_nested_types",
        "test_static_graph_multi_forward",
    ],
    "uneven inputs": [
        "test_ddp_grad_div_uneven_inputs",
        "test_ddp_join_model_equivalence",
        "test_ddp_uneven_input_join_disable",
        "test_ddp_uneven_input_exception",
        "test_ddp_uneven_inputs_stop_iteration_sync_bn",
    ],
    "ranks that differ": [
        "test_ddp_broadcast_buffer",
        "test_ddp_model_diff_shape_across_ranks",
        "test_ddp_model_diff_num_params_across_ranks",
    ],
    "BatchNorm": [
        "test_SyncBatchNorm_process_group",
        "test_DistributedDataParallel_SyncBatchNorm",
        "test_DistributedDataParallel_SyncBatchNorm_No_Affine",
        "test_DistributedDataParallel_SyncBatchNorm_2D_Input",
        "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient",
        "test_DistributedDataParallel_SyncBatchNorm_half",
    ],
}

# By the reason for which they cannot be run.
NATIVE_ONLY = {
    "reads the logs or the reducer of native DDP": [
        "test_ddp_bucket_cap_mb_list",
        "test_ddp_build_debug_param_to_name_mapping",
        "test_ddp_build_debug_param_to_name_mapping_requires_grad",
        "test_ddp_control_flow_different_across_ranks",
        "test_ddp_control_flow_same_across_ranks",
        "test_ddp_has_finalized",
        "test_ddp_logging_data_cpu",
        "test_ddp_uneven_inputs",
        "test_detect_ddp_is_actually_static",
        "test_different_graph_across_ranks",
        "test_sync_bn_logged",
    ],
    "registers a communication hook; CustomDDP has sync= instead": [
        "test_accumulate_gradients_no_sync_allreduce_hook",
        "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
        "test_ddp_broadcast_buffer_via_hook",
        "test_ddp_buffer_hook_allreduce",
        "test_ddp_buffer_hook_allreduce_return_future",
        "test_ddp_comm_hook_logging",
        "test_ddp_hook_parity_allreduce",
        "test_ddp_hook_parity_allreduce_process_group",
        "test_ddp_hook_parity_post_localSGD",
        "test_ddp_hook_parity_powerSGD",
        "test_ddp_hook_pickling_powerSGD",
        "test_ddp_python_error_logged",
        "test_post_localSGD_optimizer_parity",
        "test_post_localSGD_optimizer_step_reload",
    ],
    "uses an option or a private method of native DDP that CustomDDP does not have": [
        "test_ddp_broadcast_buffers_deprecation_warning",
        "test_ddp_device_mesh_initialization",
        "test_ddp_ignore_params_arg",
        "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
        "test_ddp_join_respects_forward_sync_buffers_false",
        "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none",
        "test_ddp_native_mixed_precision_ignored_params",
        "test_ddp_remove_autograd_hooks",
        "test_ddp_sink_noclone",
        "test_get_data_parallel_params",
        "test_skip_all_reduce_unused_parameters",
    ],
    "expects a refusal of unused parameters, whose gradients CustomDDP averages": [
        "test_ddp_multiple_nested_unused_params_err_ignore_params",
        "test_ddp_multiple_nested_unused_params_error",
        "test_ddp_unused_params_rebuild_buckets_exception",
        "test_invalid_static_graph",
    ],
    "steps an optimizer inside backward, which CustomDDP refuses": [
        "test_ddp_apply_optim_in_backward",
        "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
        "test_ddp_apply_optim_in_backward_ignored_params",
    ],
    "is about GPUs: their numbers, streams or profiles": [
        "test_DistributedDataParallel",
        "test_DistributedDataParallel_non_default_stream",
        "test_ddp_device",
        "test_ddp_logging_data_gpu",
        "test_ddp_profiling_autograd_profiler",
        "test_ddp_profiling_execution_trace",
        "test_ddp_profiling_torch_profiler",
        "test_ddp_sync_module_states",
    ],
    "makes a torch.nn.SyncBatchNorm, which does not run on the CPU": [
        "test_DistributedDataParallel_SyncBatchNorm_Channels_Last",
        "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value",
        "test_ddp_sync_bn_training_vs_eval",
    ],
    "needs a C++ compiler; test_module.py compiles without one": ["test_ddp_compile_static_graph"],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("names", TESTS.values(), ids=TESTS)
def test_tests_of_native_ddp_pass_with_custom_ddp(names: list[str]) -> None:
    absent, _ = run_ranks(2, run_torch_tests, names, timeout_s=240, collective_timeout_s=60)
    if absent:
        pytest.skip(f"the rest passed; this release of torch has no {', '.join(absent)}")


def test_each_test_of_native_ddp_is_run_or_left_out_for_one_reason() -> None:
    listed = [name for names in (*TESTS.values(), *NATIVE_ONLY.values()) for name in names]
    assert sorted(listed) == sorted(set(listed))
