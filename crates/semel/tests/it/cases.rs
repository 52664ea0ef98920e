//! Cases that really happened to people, one test each: the situation built anew, and what the binary answers.
//!
//! A: certification over what an earlier attempt left. B: tool calls that are sent again. C: git's index lock.
//! Where another test builds the same situation, it is named here and not repeated.
//!
//! | case | what happened | tests |
//! |---|---|---|
//! | A01 | a retry skips the install, since an environment is there | here; `agents::a_half_written_lockfile_is_refused_though_the_agent_ended_clean` |
//! | A02 | metadata of a distribution without its files | here; semel-host `recording::a_ghost_distribution_is_seen` |
//! | A04 | tests import another checkout through an editable install | here; semel-host `recording::an_editable_of_another_checkout_is_seen` |
//! | A05 | a lock that is cut at the end of a record | here; semel-core `lockset::tests::a_lock_cut_at_any_byte_is_refused_or_named_weak` |
//! | A06 | a warm target directory and old times: the old binary | here |
//! | A07 | a removed module, still in the residue of a build | here |
//! | A08 | the stopped install's child still writes | here; `kills::certify_holds_its_job_and_a_killed_one_is_in_nobodys_way`; semel-host `ends::everything_dies_with_a_killed_parent` |
//! | A10 | the report of the attempt before | here; semel-host `running::a_report_must_be_fresh_and_of_this_run` |
//! | B01 | the answer is late, the client sends again | here; `http::while_the_first_runs_others_wait_or_are_told` |
//! | B02 | a probe repeats the last call in a recycled workspace | `drill::the_replayed_probe_has_no_effect`, `probe::ten_thousand_probe_shaped_requests_do_nothing`, `http::an_ended_generation_answers_nothing_but_receipts` |
//! | B03 | killed between effect and answer, sent again | `crash::one_effect_at_every_point_in_durability_process` and `…_power` |
//! | B04 | a repeated delete takes a younger file | here |
//! | B05 | a repeated change is taken out again | here, by `write_file` and by `apply_patch` in both grammars |
//! | B06 | confinement by the text of a path | here; semel-host `root::tests` |
//! | B09 | a workspace is cleaned through a link | `wipe::a_wipe_refuses_what_it_must_not_touch`, and here what lies behind a link inside |
//! | B10 | the parent is swapped between check and use | here; semel-host `files::tests::a_swap_attack_never_gets_out` |
//! | B11 | one call in many spellings | here; semel-core `canonical::tests` |
//! | C01 … C10 | another git's lock, killed, living, translated, of another kind; hidden files | here; semel-host `git::tests::restore` |

mod certification;
mod gateway;
pub(crate) mod lab;
mod restoration;
