//! Where a bridge finds its gateway, its token and the place of its spool: as a job's process, or as a person's own.

use super::{Bridge, Says, Way, Where};
use crate::config::{self, Config};
use crate::engine::host;
use crate::engine::look::read_input;
use crate::engine::volume::{self, Source, Wanted};
use crate::wire::{self, Place, private_directory};
use semel_core::backend;
use semel_core::ids::JobId;
use semel_core::mcp::spool::Reissue;
use semel_core::volume::{Durability, Owner, Role};
use semel_core::{Code, Refusal};
use semel_host::daemon::{Keep, StateRoot};
use semel_host::hold::Hold;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Is what a person asked for, by flags or by the environment.
pub(crate) struct Asked {
    /// The daemon's URL.
    pub(crate) url: Option<String>,
    /// The daemon's Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// The file that holds the token.
    pub(crate) token_file: Option<PathBuf>,
    /// The job whose volume is opened, and kept for the next time.
    pub(crate) job: Option<JobId>,
    /// What is copied into a volume that is opened.
    pub(crate) from: Option<PathBuf>,
    /// What its calls survive.
    pub(crate) durability: Durability,
    /// Where spools lie.
    pub(crate) spool: Option<PathBuf>,
    /// What becomes of a call that may repeat another one.
    pub(crate) reissue: Reissue,
    /// How a person is told.
    pub(crate) says: Says,
}

/// Below the state root.
const SPOOLS: &str = "bridge";
const TOKEN: u64 = 4096;
/// How long one bridge waits for another one that opens the volume of the same job.
const OPENING: Duration = Duration::from_secs(60);

/// Makes a bridge.
///
/// # Errors
/// `unauthorized` where no token is named; `bad_config` without a state root where one is needed; why a volume cannot be
/// opened.
pub(crate) async fn bridge(
    asked: Asked,
    config: impl Fn() -> Result<Config, Refusal>,
) -> Result<Bridge, Refusal> {
    let (env_url, env_token) = config::job_access();
    let named = asked.url.is_some() || asked.socket.is_some();
    let (url, socket) = if named {
        (asked.url.clone(), asked.socket.clone())
    } else if asked.job.is_some() {
        (None, None)
    } else {
        (env_url, config::job_socket())
    };
    // The socket stays where it is when the daemon begins anew; a port may be another one.
    let places: Vec<Place> = socket
        .map(|path| Ok(Place::Unix(path)))
        .into_iter()
        .chain(url.map(Place::of_url))
        .collect::<Result<_, Refusal>>()?;
    let spool = match (&asked.spool, config()) {
        (Some(place), _) => std::path::absolute(place)
            .map_err(|e| Refusal::new(Code::BadInput, format!("no such place: {e}")))?,
        (None, Ok(config)) => config.state.join(SPOOLS),
        (None, Err(refusal)) => config::spool_at_home().ok_or(refusal)?,
    };
    let to = || -> Result<Where, Refusal> {
        Ok(if places.is_empty() {
            Where::Own(Arc::new(config()?))
        } else {
            Where::There(places.clone())
        })
    };
    if let Some(job) = &asked.job {
        let token = own_volume(&asked, job, &config()?, &to).await?;
        return Ok(Bridge::new(
            Way::new(to()?, token),
            spool,
            asked.reissue,
            asked.says,
        ));
    }
    let token = match (&asked.token_file, env_token) {
        (Some(file), _) => text(read_input(file, TOKEN)?)?,
        (None, Some(token)) => token,
        (None, None) => {
            let why =
                "no token: give --job NAME for a volume of your own, or --token-file, or set SEMEL_TOKEN";
            return Err(Refusal::new(Code::Unauthorized, why));
        }
    };
    Ok(Bridge::new(
        Way::new(to()?, token),
        spool,
        asked.reissue,
        asked.says,
    ))
}

fn text(bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes)
        .map(|text| text.trim().to_owned())
        .map_err(|_| Refusal::new(Code::Unauthorized, "the token is not text"))
}

/// Gives the token of the open volume of a job: the one that an earlier bridge opened, else a new one's.
async fn own_volume(
    asked: &Asked,
    job: &JobId,
    config: &Config,
    to: &impl Fn() -> Result<Where, Refusal>,
) -> Result<String, Refusal> {
    StateRoot::make(&config.state).map_err(host)?;
    let place = config.state.join(SPOOLS);
    let root = private_directory(&place)?;
    let lock = place.join(format!("{job}.lock"));
    let since = Instant::now();
    let _alone = loop {
        match Hold::take(&lock).map_err(host)? {
            Some(hold) => break hold,
            None if since.elapsed() < OPENING => tokio::time::sleep(Duration::from_millis(20)).await,
            None => {
                let why = "another bridge has been opening the volume of this job for long";
                return Err(Refusal::new(Code::VolumeBusy, why).name(job.as_str()));
            }
        }
    };
    let name = format!("{job}.token");
    if let Some(known) = root.read(&name, TOKEN).map_err(host)? {
        let token = text(known)?;
        let way = Way::new(to()?, token.clone());
        let looks = Bridge::new(way, place, asked.reissue, asked.says.clone());
        match looks.lives().await {
            Ok(true) => return Ok(token),
            Ok(false) => {}
            // The journal may be another one.
            Err(refusal) if refusal.code == Code::Unauthorized => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let (config, job) = (config.clone(), job.clone());
    let from = asked.from.as_ref().map(std::path::absolute).transpose();
    let from = from.map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    let durability = asked.durability;
    let opened = super::blocking(move || {
        let engine = wire::command(config)?;
        volume::open(
            &engine,
            Wanted {
                job,
                role: Role::Draft,
                owner: Owner::Operator,
                durability,
                confinement: None,
                backend: backend::Wanted::Auto,
                source: from.map_or(Source::Empty, Source::Dir),
            },
        )
    })
    .await?;
    root.replace(&name, format!("{}\n", opened.token).as_bytes(), Keep::Synced)
        .map_err(host)?;
    (asked.says)(&format!(
        "semel mcp: opened generation {} of job {}",
        opened.volume.generation, opened.volume.job
    ));
    Ok(opened.token)
}
