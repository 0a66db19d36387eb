//! Gives up what the gateway does not need once its ports are open, and keeps keys out of core dumps.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Giving up a privilege failed.
#[derive(Debug, thiserror::Error)]
#[error("giving up privileges, {step}: {source}")]
pub struct PrivilegeError {
    step: &'static str,
    #[source]
    source: rustix::io::Errno,
}

fn step(step: &'static str) -> impl Fn(rustix::io::Errno) -> PrivilegeError {
    move |source| PrivilegeError { step, source }
}

/// No core dumps, no tracing by other processes of the same user: keys stay in this process. To be called first of all.
///
/// # Errors
/// [`PrivilegeError`] if the kernel refuses.
pub fn hide_memory() -> Result<(), PrivilegeError> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(step("limiting core dumps"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("forbidding core dumps"))
}

/// Keeps CAP_NET_ADMIN, for the routes of tunnels that a reload brings, and gives up every other capability, in this thread and
/// those that it starts from now on. To be called while it is the only one.
///
/// # Errors
/// [`PrivilegeError`] if the kernel refuses.
pub fn drop_privileges() -> Result<(), PrivilegeError> {
    set_no_new_privs(true).map_err(step("forbidding new ones"))?;
    let current = capabilities(None).map_err(step("reading capabilities"))?;
    let kept = CapabilitySet::NET_ADMIN & current.permitted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(step("dropping capabilities"))
}
