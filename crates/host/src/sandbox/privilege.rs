//! Gives up every privilege, for this process and all it will start. It does not confine what needs none.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};
use std::io;

/// Says whether this process may make namespaces without a user namespace of its own.
pub(super) fn is_administrator() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Gives up every capability for ever: bounding, ambient, inheritable, permitted, and what an owner named root
/// would regain by running a program.
pub(super) fn drop_all() -> io::Result<()> {
    set_no_new_privs(true)?;
    let sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for bit in 0..64 {
            match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
                Ok(()) => {}
                // Beyond the last capability that this kernel knows.
                Err(Errno::INVAL) => break,
                Err(e) => return Err(e.into()),
            }
        }
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        set_capabilities_secure_bits(bits)?;
    }
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(e) => return Err(e.into()),
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)?;
    Ok(())
}

/// Goes before others for its share of the processors, where it may: what ends a bomb must not wait behind it.
pub(super) fn go_first() {
    rustix::process::setpriority_process(None, -15).ok();
}

/// Goes no more before others.
pub(super) fn go_with_others(nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(None, nice)?)
}

/// Says how this process goes behind others.
pub(super) fn goes() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// Forbids core dumps, which would be written outside, or be piped to a program of the host.
pub(super) fn no_core() -> io::Result<()> {
    // Less than the smallest core file; and the one value at which the kernel starts no program for it (zero
    // does not stop it).
    let none = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    Ok(setrlimit(Resource::Core, none)?)
}
