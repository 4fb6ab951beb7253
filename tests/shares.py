"""The share of the quick tier in families of tests that take long: one test in n, or none; the others are thorough.

A family is a test function with all its parameters, or a function of `tests/parallel`, as SUITE.FUNCTION.
What is in the thorough tier because of its own marker does not count. In `make test` each family must still find a
fault of its kind; which of its tests that takes is for the thorough tier, from which each commit draws others.
"""

from __future__ import annotations

import collections

NONE = 0
ONE_IN = {
    # ---- real ranks ----
    "errors.ranks_that_disagree_on_the_vector": 4,
    "grid.it_ends_as_the_oracles_say": 2,
    "keras_learning.fit_learns_and_replicas_agree": NONE,  # keras_senders has one of them
    "servers.asynchronous_servers_learn_and_end_alike": NONE,
    "servers.a_slow_rank_holds_nobody_up_beyond_the_bound": NONE,
    "servers.a_rank_that_is_stopped_for_a_while_goes_on": NONE,
    "keras_faults.an_overflow_on_one_rank_is_a_step_that_all_skip": 3,
    "lars.a_loop_of_one_s_own_makes_the_slots_in_its_graph": 2,
    "lars.shared_norms_have_the_same_bits": 2,
    "lars.a_measured_choice_is_the_same_on_every_rank_and_says_why": 2,
    "exchange.dense_gradients_apart_are_those_end_to_end": 3,
    "horovod_user.early_stopping": NONE,
    "horovod_user.load_model_on_one_rank_and_go_on": NONE,
    "horovod_user.broadcast_in_a_tape_loop": NONE,
    "horovod_user.warm_up": NONE,
    "pipeline.a_gradient_that_is_not_finite_ends_the_step_on_all_stages": NONE,
    "sync_batch_norm.statistics_and_gradients_are_those_of_one_process": 4,
    "keras_learning.loss_scaling_with_last_batches_that_differ": NONE,
    "keras_learning.several_steps_per_execution_are_as_single_ones": NONE,
    # ---- one process ----
    "tests/averaging/test_lossy.py::test_without_loss_it_is_exact_and_with_all_lost_it_is_local": 3,
    "tests/averaging/test_transports.py::test_laws": 2,
    "tests/collectives/test_auto.py::TestAuto::test_what_calls_take_is_measured_where_it_is_not_given": NONE,
    "tests/collectives/test_results.py::TestResult::test_is_the_dense_result_of_other_operations": 3,
    "tests/collectives/test_results.py::TestResult::test_is_the_dense_result_to_the_bit": 2,
    "tests/collectives/test_traffic.py::TestTraffic::test_bytes_are_what_the_index_sets_imply": 2,
    "tests/datacache/test_fingerprint_ordinary.py::test_every_process_finds_the_same_before_and_after_use": NONE,
    "tests/datacache/test_training.py::test_killed_in_mid_epoch_it_goes_on": NONE,
    "tests/examples/test_linear.py::test_losses_are_those_of_one_rank_for_every_exchange": NONE,
    "tests/examples/test_recommender.py::test_it_learns_what_goes_with_what": NONE,
    "tests/exchange/test_exchange_laws.py::test_every_shape_of_the_grid_adds_floats_in_rank_order": 3,
    "tests/exchange/test_obeying.py::test_a_write_on_one_rank_is_an_error_on_all_and_changes_nothing": 3,
    "tests/exchange/test_obeying.py::test_all_drop_what_waits_and_then_exchange_their_gradients": 4,
    "tests/faults/test_ahead_writes.py::test_a_step_reads_the_shared_weights_and_its_writes_are_kept": 2,
    "tests/faults/test_ahead_writes.py::test_control_without_writes_before_the_update": NONE,
    "tests/faults/test_datacache_damage.py::test_a_flipped_bit_of_a_checkpoint_is_never_loaded": 3,
    "tests/faults/test_datacache_imports.py::test_a_changed_module_is_not_served_from_the_cache": 2,
    "tests/faults/test_first_command.py::test_auto_prints_the_time_of_dense_beside_that_of_a_lossy_recipe": NONE,
    "tests/faults/test_first_command.py::test_auto_takes_a_lossy_recipe_only_where_that_clearly_wins": NONE,
    "tests/faults/test_first_command.py::test_control_auto_takes_a_lossy_recipe_that_is_twice_as_fast": NONE,
    "tests/faults/test_installed.py::test_control_an_example_is_started_as_a_module": NONE,
    "tests/faults/test_nameless_host.py::test_control_ranks_start_where_the_name_resolves": NONE,
    "tests/faults/test_launching.py::test_hosts_may_have_other_interfaces_than_this_machine": NONE,
    "tests/gpu/test_registration.py::test_none_with_a_library_of_another_build": NONE,
    "tests/keras/test_ahead.py::test_every_step_is_that_of_numpy": 2,
    "tests/keras/test_ahead.py::test_fit_takes_gradients_there_and_leaves_the_shared_weights": 2,
    "tests/keras/test_auto_updates.py::test_all_ranks_choose_alike_and_hold_the_same_weights": 2,
    "tests/keras/test_gain_ratio.py::test_all_recipes_measure_it_and_count_its_bytes": 3,
    "tests/keras/test_gain_ratio.py::test_it_is_the_ratio_of_variances_of_signal_and_noise": NONE,
    "tests/keras/test_local_steps.py::test_a_stopped_run_goes_on_to_the_bit": 2,
    "tests/keras/test_local_steps.py::test_every_step_is_that_of_numpy": 2,
    "tests/keras/test_local_updates.py::test_every_step_is_that_of_numpy": 3,
    "tests/keras/test_local_updates.py::test_every_step_with_the_gain_ratio_is_that_of_numpy": 3,
    "tests/keras/test_local_updates.py::test_the_rank_whose_gradient_is_not_finite_is_named": 3,
    "tests/keras/test_momentum.py::test_every_step_is_that_of_numpy": 3,
    "tests/keras/test_one_node.py::test_it_goes_on_from_nodes_that_select_and_back": 2,
    "tests/keras/test_one_node.py::test_it_resumes_to_the_bit": 2,
    "tests/keras/test_one_node.py::test_weights_and_slots_are_those_of_plain_keras": 3,
    "tests/keras/test_signature.py::test_mypy_knows_the_arguments": NONE,
    "tests/keras/test_tape.py::test_exchanges_of_heads_that_are_gone_are_gone": NONE,
    "tests/lars/test_keras.py::test_mixed_precision": 2,
    "tests/lars/test_optimizers.py::test_a_hundred_steps_agree_with_numpy": 3,
    "tests/lars/test_sharing.py::test_shared_and_unshared_steps_have_the_same_bits": 2,
    "tests/ops/test_apply.py::test_any_threads_and_instructions_give_the_same_bits": 3,
    "tests/ops/test_datagrams.py::test_ranks_average_as_they_must_and_clean_under_sanitizers": NONE,
    "tests/ops/test_momentum.py::test_any_threads_and_instructions_give_the_same_bits": 3,
    "tests/ops/test_select_buckets.py::test_every_instruction_set_takes_the_largest_of_each_bucket": 3,
    "tests/ops/test_shared_memory.py::test_it_is_clean_under_sanitizers": NONE,
    "tests/servers/test_members.py::test_the_bound_on_staleness_holds": 2,
    "tests/test_contracts.py::TestAggregator::test_gives_a_mean_of_the_vectors_dtype_and_shape_in_graphs_too": 3,
    "tests/test_contracts.py::TestAggregator::test_what_is_put_back_is_owed": 2,
    "tests/tools/test_overlay.py::test_it_has_the_packages_of_this_one_and_is_made_once": NONE,
    "tests/tuning/test_auto.py::test_a_file_that_cannot_be_used_is_said_to_be_so_and_written_anew": 3,
    "tests/tuning/test_auto.py::test_a_folder_that_cannot_be_written_is_done_without": NONE,
    "tests/tuning/test_auto.py::test_all_ranks_choose_what_was_measured_to_be_fastest": 2,
}


class Shares:
    """Decides for the tests of each family, in order, which are in the quick tier."""

    def __init__(self) -> None:
        self._seen: collections.Counter[str] = collections.Counter()

    def is_quick(self, family: str) -> bool:
        """Whether the next test of a family is in the quick tier."""
        number = self._seen[family]
        self._seen[family] += 1
        each = ONE_IN.get(family, 1)
        return each != NONE and number % each == 0
