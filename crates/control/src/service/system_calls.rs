//! The system calls that a running gateway may make: seccomp filters (seccomp(2)) that limit what an attacker
//! who has taken over the process can do.
//!
//! - Another program, another process's memory, the kernel's configuration: the process is killed. A gateway
//!   never does this, so it is an attack.
//! - Any call on no list, or with arguments that a gateway does not use: `EPERM`. It may be a library's new
//!   behaviour: the gateway continues without that function.
//! - `clone3`: `ENOSYS`. Its flags are in memory, where a filter cannot see them; the C library falls back to
//!   `clone`.
//!
//! Three filters are in force at once; the most severe answer counts. Calls that are allowed with any
//! arguments (all of the packet path) are answered from the kernel's bitmap (since Linux 5.11) and cost next
//! to nothing.
//!
//! The lists cover everything after the ports are open: the packet path, the store, reloads with their
//! routes, the control socket, metrics, the log, notifications to systemd, new threads, and a panic with its
//! backtrace. Libraries are loaded before that: afterwards no memory can be made executable.

use libc::c_long;
use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::collections::BTreeMap;

/// No filter could be installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// There is no list for this processor.
    #[error("there is no list of system calls for {}", std::env::consts::ARCH)]
    Processor,
    /// The kernel does not support seccomp, or refuses the filter.
    #[error("{0}")]
    Refused(#[from] seccompiler::Error),
    /// The list could not be compiled.
    #[error("{0}")]
    List(#[from] seccompiler::BackendError),
}

/// Calls that some gateways make while they run, and others never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// Elements of maps of bpf(2), which the filter of an AF_XDP port looks up, are changed.
    pub filter_maps: bool,
    /// A device's driver has a filter of its own library's, which changes elements of its map and asks bpf(2)
    /// about it when the device is closed: other commands are refused, not an attack.
    pub filter_of_driver: bool,
}

/// Filters the system calls of this thread and of the threads that it starts from now on, permanently. To be
/// called while it is the only thread.
///
/// # Errors
/// [`FilterError`]; some of the filters may already be in force.
pub fn filter(needs: Needs) -> Result<(), FilterError> {
    let processor = std::env::consts::ARCH.try_into().map_err(|_| FilterError::Processor)?;
    // The list of allowed calls comes last: it allows no further filters.
    for program in [hostile(processor, needs)?, clone3(processor)?, allowed(processor, needs)?] {
        apply_filter(&program)?;
    }
    Ok(())
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Rules that match with any arguments.
fn with_any_arguments(calls: &[c_long]) -> Rules {
    calls.iter().map(|&call| (call, Vec::new())).collect()
}

/// A rule on the low 32 bits of an argument.
fn argument(index: u8, operator: SeccompCmpOp, value: u32) -> Result<SeccompRule, FilterError> {
    let length = SeccompCmpArgLen::Dword;
    Ok(SeccompRule::new(vec![SeccompCondition::new(index, length, operator, value.into())?])?)
}

/// Rules that match if an argument is one of `values`.
fn one_of(index: u8, values: &[u32]) -> Result<Vec<SeccompRule>, FilterError> {
    values.iter().map(|&value| argument(index, SeccompCmpOp::Eq, value)).collect()
}

/// A rule that matches if an argument has none of the bits in `mask`.
fn without(index: u8, mask: u32) -> Result<SeccompRule, FilterError> {
    argument(index, SeccompCmpOp::MaskedEq(mask.into()), 0)
}

fn compile(
    rules: Rules,
    matching: SeccompAction,
    others: SeccompAction,
    processor: TargetArch,
) -> Result<BpfProgram, FilterError> {
    Ok(SeccompFilter::new(rules, others, matching, processor)?.try_into()?)
}

fn hostile(processor: TargetArch, needs: Needs) -> Result<BpfProgram, FilterError> {
    let mut rules = with_any_arguments(HOSTILE);
    rules.extend(with_any_arguments(HOSTILE_HERE));
    if needs.filter_of_driver {
        rules.remove(&libc::SYS_bpf);
    } else if needs.filter_maps {
        let other = |command: u32| {
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, command.into())
        };
        let none = FILTER_MAP_COMMANDS.into_iter().map(other).collect::<Result<Vec<_>, _>>()?;
        rules.insert(libc::SYS_bpf, vec![SeccompRule::new(none)?]);
    }
    // Threads are allowed, processes are not. A thread cannot have a new user namespace (clone(2)), and
    // without one other namespaces need CAP_SYS_ADMIN.
    rules.insert(libc::SYS_clone, vec![without(0, bits(libc::CLONE_THREAD))?]);
    // Injects input into the operator's terminal.
    rules.insert(libc::SYS_ioctl, one_of(1, &[TIOCSTI])?);
    compile(rules, SeccompAction::KillProcess, SeccompAction::Allow, processor)
}

fn clone3(processor: TargetArch) -> Result<BpfProgram, FilterError> {
    let missing = SeccompAction::Errno(bits(libc::ENOSYS));
    compile(with_any_arguments(&[libc::SYS_clone3]), missing, SeccompAction::Allow, processor)
}

fn allowed(processor: TargetArch, needs: Needs) -> Result<BpfProgram, FilterError> {
    let mut rules = with_any_arguments(PACKETS);
    if needs.filter_maps || needs.filter_of_driver {
        rules.insert(libc::SYS_bpf, one_of(0, &FILTER_MAP_COMMANDS)?);
    }
    [FILES, MEMORY_AND_THREADS, TIME_AND_SELF, OLD_NAMES]
        .iter()
        .for_each(|calls| rules.extend(with_any_arguments(calls)));
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(bits);
    rules.insert(libc::SYS_socket, one_of(0, &families)?);
    rules.insert(libc::SYS_socketpair, one_of(0, &families[..1])?);
    let executable = bits(libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, vec![without(2, executable)?]);
    rules.insert(libc::SYS_mprotect, vec![without(2, executable)?]);
    rules.insert(
        libc::SYS_prctl,
        one_of(0, &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA].map(bits))?,
    );
    // Signals (of an abort) and limits of this process only.
    let own = bits(getpid().as_raw_pid());
    rules.insert(libc::SYS_tgkill, one_of(0, &[own])?);
    rules.insert(libc::SYS_prlimit64, one_of(0, &[0, own])?);
    // A worker binds itself to its processor.
    rules.insert(libc::SYS_sched_setaffinity, one_of(0, &[0])?);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(bits(libc::EPERM)), processor)
}

/// The bits of one of the C library's constants.
const fn bits(constant: i32) -> u32 {
    constant.cast_unsigned()
}

/// `TIOCSTI` of ioctl_tty(2), the same on all processors that have a list here.
const TIOCSTI: u32 = 0x5412;

/// `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_DELETE_ELEM` of linux/bpf.h.
const FILTER_MAP_COMMANDS: [u32; 2] = [2, 3];

/// The packet path, and serving clients.
const PACKETS: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_ioctl,
];

/// Configuration, keys, the store, the control socket's name, the scheduler's statistics in `/proc`.
const FILES: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
];

/// `mmap`, `mprotect` and `clone` are allowed with conditions.
const MEMORY_AND_THREADS: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

const TIME_AND_SELF: &[c_long] = &[
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Old names that the C library still calls, on processors that have them.
#[cfg(target_arch = "x86_64")]
const OLD_NAMES: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_poll,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMES: &[c_long] = &[];

/// Calls that no part of a gateway ever makes.
const HOSTILE: &[c_long] = &[
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Tools of attacks on the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

#[cfg(target_arch = "x86_64")]
const HOSTILE_HERE: &[c_long] =
    &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_kexec_file_load, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const HOSTILE_HERE: &[c_long] = &[];
