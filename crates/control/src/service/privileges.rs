//! Gives up what the gateway does not need once its ports are open, and keeps keys out of core dumps.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Giving up a privilege failed.
#[derive(Debug, thiserror::Error)]
#[error("giving up privileges, {step}: {source}")]
pub struct PrivilegeError {
    step: &'static str,
    #[source]
    source: Errno,
}

fn step(step: &'static str) -> impl Fn(Errno) -> PrivilegeError {
    move |source| PrivilegeError { step, source }
}

/// Forbids core dumps and tracing by other processes of the same user: keys stay in this process. To be
/// called first.
///
/// # Errors
/// [`PrivilegeError`] if the kernel refuses.
pub fn hide_memory() -> Result<(), PrivilegeError> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(step("limiting core dumps"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("forbidding core dumps"))
}

/// Keeps CAP_NET_ADMIN, for the routes of tunnels that a reload adds, and drops every other capability, in
/// this thread and in those that it starts from now on. To be called while it is the only thread.
///
/// # Errors
/// [`PrivilegeError`] if the kernel refuses.
pub fn drop_privileges() -> Result<(), PrivilegeError> {
    set_no_new_privs(true).map_err(step("forbidding new ones"))?;
    let current = capabilities(None).map_err(step("reading capabilities"))?;
    let kept = CapabilitySet::NET_ADMIN & current.permitted;
    // Requires this capability: systemd starts a service without it with a small bounding set; any other
    // process without it has nothing to lose.
    if current.effective.contains(CapabilitySet::SETPCAP) {
        bound(kept).map_err(step("bounding capabilities"))?;
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("dropping capabilities"))
}

/// Removes all but these capabilities from the bounding set: not even an executed program can regain them.
fn bound(kept: CapabilitySet) -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        // The kernel may have more capabilities than our libraries know.
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => remove_capability_from_bounding_set(capability)?,
            Ok(_) => {}
            // Past the last capability.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
