//! The laws of what is past retention: pre-images that are freed, and receipts that expire.

use super::{Kept, done, refused, same, sample};
use crate::journal::{Began, Journal, LogFilter};
use semel_core::Code;
use semel_core::call::Intent;
use semel_core::effect::{Before, Effect, Slot};
use semel_core::ids::{FileId, UnixMs};
use semel_core::record::Record;
use semel_core::volume::{End, Volume, VolumeState};

fn begun(journal: &dyn Journal, volume: &Volume, key: &str) -> Result<Intent, String> {
    let intent = sample::intent(volume, key, key)?;
    same(
        "begin",
        &done("begin", journal.begin(intent.clone()))?,
        &Began::Began,
    )?;
    Ok(intent)
}

fn finished(journal: &dyn Journal, volume: &Volume, key: &str) -> Result<Intent, String> {
    let intent = begun(journal, volume, key)?;
    let receipt = sample::receipt(&intent);
    done("finish", journal.finish(intent.execution_id.clone(), receipt))?;
    Ok(intent)
}

/// Begins a call that puts back what others removed.
fn restores(journal: &dyn Journal, volume: &Volume, key: &str, of: &Intent) -> Result<Intent, String> {
    let mut intent = sample::intent(volume, key, key)?;
    intent.effects = vec![Effect::Restore {
        at: intent.path.clone(),
        kept: Slot::of(&of.execution_id, 0),
        what: Before {
            id: FileId::parse("ext4:83:0a").map_err(|e| e.to_string())?,
            sha256: None,
            stated: None,
            other_names: None,
        },
    }];
    done("begin", journal.begin(intent.clone()))?;
    Ok(intent)
}

fn evictions(journal: &dyn Journal) -> Result<usize, String> {
    let log = done("log", journal.log(LogFilter::default()))?;
    let evicts = |record: &Record| matches!(record, Record::PreImagesEvicted { .. });
    Ok(log.iter().filter(|line| evicts(&line.entry.record)).count())
}

pub(super) fn only_what_nothing_needs_is_evicted(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let stranger = finished(journal, &sample::draft(journal, "job-b")?, "k")?;
    let (free, again) = (finished(journal, &volume, "a")?, finished(journal, &volume, "b")?);
    let running = begun(journal, &volume, "c")?;
    let unknown = begun(journal, &volume, "d")?;
    done(
        "unknown",
        journal.unknown(unknown.execution_id.clone(), "w".to_owned(), sample::NOW),
    )?;
    let (named, named_too) = (finished(journal, &volume, "e")?, finished(journal, &volume, "f")?);
    let undoing = restores(journal, &volume, "g", &named)?;
    let lost = restores(journal, &volume, "h", &named_too)?;
    done(
        "unknown",
        journal.unknown(lost.execution_id, "w".to_owned(), sample::NOW),
    )?;
    let never = sample::intent(&volume, "never", "a")?;
    let all = [
        &free, &again, &running, &unknown, &named, &named_too, &stranger, &never, &free,
    ];
    let all: Vec<_> = all.iter().map(|intent| intent.execution_id.clone()).collect();
    let evict = |ids| {
        done(
            "evict",
            journal.evict_pre_images(volume.generation.clone(), ids, sample::NOW),
        )
    };
    let may = evict(all.clone())?;
    same("what may go", &may, &vec![free.execution_id, again.execution_id])?;
    // Once the call that names it is done, it may go; what one entry says twice, two may say.
    done(
        "finish",
        journal.finish(undoing.execution_id.clone(), sample::receipt(&undoing)),
    )?;
    same("what may go now", &evict(all)?.len(), &3)?;
    same("nothing to say", &evict(vec![never.execution_id])?.len(), &0)?;
    same("how many entries", &evictions(journal)?, &2)?;
    let many = vec![running.execution_id; 1001];
    refused(
        "too many",
        journal.evict_pre_images(volume.generation, many, sample::NOW),
        Code::BadInput,
        None,
    )
}

fn end(journal: &dyn Journal, volume: &Volume) -> Result<Volume, String> {
    let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
    let how = End::Dirty {
        reason: "ended_dirty".to_owned(),
    };
    done("end", journal.end_volume(generation, fence, how, sample::NOW))
}

pub(super) fn an_ended_generation_evicts_nothing(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let intent = finished(journal, &volume, "a")?;
    end(journal, &volume)?;
    let ids = vec![intent.execution_id];
    refused(
        "after the end",
        journal.evict_pre_images(volume.generation, ids.clone(), sample::NOW),
        Code::ReplayConflict,
        Some("stale_generation"),
    )?;
    let never = sample::new_volume("job-b", volume.role, volume.durability)?;
    refused(
        "a generation that never was",
        journal.evict_pre_images(never.generation, ids, sample::NOW),
        Code::NotFound,
        None,
    )?;
    same("how many entries", &evictions(journal)?, &0)
}

pub(super) fn receipts_expire_with_their_volume(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let generation = || volume.generation.clone();
    let known = finished(journal, &volume, "a")?;
    let unknown = begun(journal, &volume, "b")?;
    let expire = |at| journal.expire_receipts(generation(), UnixMs(at));
    let busy = |what| refused(what, expire(1), Code::VolumeBusy, None);
    busy("while it is open")?;
    let before = done("prior", journal.prior(known.scope.clone(), known.key.clone()))?;
    done(
        "unknown",
        journal.unknown(unknown.execution_id.clone(), "w".to_owned(), sample::NOW),
    )?;
    end(journal, &volume)?;
    busy("once it ended")?;
    done("destroyed", journal.volume_destroyed(generation(), sample::NOW))?;
    refused(
        "with an unknown outcome",
        expire(1),
        Code::OutcomeUnknown,
        Some("call_unknown"),
    )?;
    let resolved = semel_core::call::Resolved {
        by: "a person".to_owned(),
        note: "looked".to_owned(),
    };
    let never = semel_core::call::Settled::NeverHappened;
    done(
        "resolve",
        journal.resolve(unknown.execution_id, never, resolved, sample::NOW),
    )?;
    let expired = done("expire", expire(1))?;
    same(
        "the volume",
        &(expired.state, expired.receipts_expired_at),
        &(VolumeState::Destroyed, Some(UnixMs(1))),
    )?;
    same("a second time", &done("expire", expire(2))?, &expired)?;
    same(
        "read",
        &done("volume", journal.volume(generation()))?,
        &Some(expired),
    )?;
    let after = done("prior", journal.prior(known.scope, known.key))?;
    same("the key stays known", &after, &before)
}
