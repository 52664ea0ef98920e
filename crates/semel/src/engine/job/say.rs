//! What a stage says while it works: lines for a person, and points at which a test kills the process.
//!
//! In ordinary life nobody asks for a point.

use semel_core::{Code, Refusal};

/// Names a point of the main job, right after what it is named for was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Point {
    /// A run is recorded.
    Started,
    /// The draft is open; the journal's run does not know it yet.
    DraftOpened,
    /// The draft is recorded as the run's.
    Drafted,
    /// The agent ended by itself; its draft is still open.
    AgentEnded,
    /// The draft ended clean; the stage is not recorded.
    DraftEnded,
    /// The archive stands; the stage is not recorded.
    Sealed,
    /// The certification's generation is open.
    CertOpened,
    /// The sealed tree is unpacked and is what it says it is.
    Taken,
    /// The locks are read, and close over what they name.
    Bound,
    /// What an installer needs is in the store.
    Fetched,
    /// What the locks name is installed.
    Installed,
    /// The installed bytes are recorded.
    Recorded,
    /// The tests ran.
    Tested,
    /// Everything was looked at again.
    Verified,
    /// The statement is kept, unsigned.
    Stated,
    /// The verdict is in the journal; no envelope stands.
    Judged,
    /// The generation ended; no envelope stands.
    CertEnded,
    /// The envelope stands; the stage is not recorded.
    Published,
    /// The certification is recorded as the run's.
    Certified,
    /// The branch or patch stands; the stage is not recorded.
    Delivered,
    /// The delivery is recorded; the run has no end.
    DeliveryRecorded,
}

impl Point {
    /// Lists every point, in the order in which they come.
    pub(crate) const ALL: [Point; 21] = [
        Point::Started,
        Point::DraftOpened,
        Point::Drafted,
        Point::AgentEnded,
        Point::DraftEnded,
        Point::Sealed,
        Point::CertOpened,
        Point::Taken,
        Point::Bound,
        Point::Fetched,
        Point::Installed,
        Point::Recorded,
        Point::Tested,
        Point::Verified,
        Point::Stated,
        Point::Judged,
        Point::CertEnded,
        Point::Published,
        Point::Certified,
        Point::Delivered,
        Point::DeliveryRecorded,
    ];

    /// Gives the name by which a test asks for the point.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Point::Started => "started",
            Point::DraftOpened => "draft_opened",
            Point::Drafted => "drafted",
            Point::AgentEnded => "agent_ended",
            Point::DraftEnded => "draft_ended",
            Point::Sealed => "sealed",
            Point::CertOpened => "cert_opened",
            Point::Taken => "taken",
            Point::Bound => "bound",
            Point::Fetched => "fetched",
            Point::Installed => "installed",
            Point::Recorded => "recorded",
            Point::Tested => "tested",
            Point::Verified => "verified",
            Point::Stated => "stated",
            Point::Judged => "judged",
            Point::CertEnded => "cert_ended",
            Point::Published => "published",
            Point::Certified => "certified",
            Point::Delivered => "delivered",
            Point::DeliveryRecorded => "delivery_recorded",
        }
    }

    /// Finds the point of a name.
    ///
    /// # Errors
    /// `usage` for any other name.
    pub(crate) fn parse(name: &str) -> Result<Self, Refusal> {
        Self::ALL
            .into_iter()
            .find(|point| point.name() == name)
            .ok_or_else(|| {
                Refusal::new(Code::Usage, "there is no such crash point")
                    .name(name)
                    .names(Self::ALL.iter().map(|point| point.name()))
            })
    }
}

/// Is what every stage of the main job is given to speak with.
#[derive(Clone, Copy)]
pub(crate) struct Say<'a> {
    line: &'a dyn Fn(&str),
    crash: Option<Point>,
}

impl<'a> Say<'a> {
    /// Speaks to a person, and kills the process where a test asks for it.
    pub(crate) fn new(line: &'a dyn Fn(&str), crash: Option<Point>) -> Self {
        Self { line, crash }
    }

    /// Says a line.
    pub(crate) fn line(self, text: &str) {
        (self.line)(text);
    }

    /// Hears that a point was reached.
    pub(crate) fn reached(self, point: Point) {
        if self.crash == Some(point) {
            semel_host::daemon::crash();
        }
    }
}
