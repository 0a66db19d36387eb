//! Error numbers of Linux, as they are in `include/uapi/asm-generic/errno*.h`.

/// An error number, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub u16);

impl Errno {
    /// `EPERM`: the caller may not do this.
    pub const PERM: Self = Self(1);
    /// `ENOENT`: no such policy.
    pub const NOENT: Self = Self(2);
    /// `ESRCH`: no such SA.
    pub const SRCH: Self = Self(3);
    /// `ENOMEM`: no memory, or a limit is reached.
    pub const NOMEM: Self = Self(12);
    /// `EACCES`: the security policy of the system forbids it.
    pub const ACCES: Self = Self(13);
    /// `EBUSY`: in use.
    pub const BUSY: Self = Self(16);
    /// `EEXIST`: it is there already.
    pub const EXIST: Self = Self(17);
    /// `ENODEV`: no such interface.
    pub const NODEV: Self = Self(19);
    /// `EINVAL`: a value that cannot be.
    pub const INVAL: Self = Self(22);
    /// `ERANGE`: an attribute that is too short, or a number out of its range.
    pub const RANGE: Self = Self(34);
    /// `ENOSYS`: no such algorithm.
    pub const NOSYS: Self = Self(38);
    /// `ENODATA`: what was to change is not there, or is in the way.
    pub const NODATA: Self = Self(61);
    /// `EMSGSIZE`: does not fit.
    pub const MSGSIZE: Self = Self(90);
    /// `ENOPROTOOPT`: not built in.
    pub const NOPROTOOPT: Self = Self(92);
    /// `EPROTONOSUPPORT`: no such protocol.
    pub const PROTONOSUPPORT: Self = Self(93);
    /// `EOPNOTSUPP`: not supported.
    pub const OPNOTSUPP: Self = Self(95);
    /// `EAFNOSUPPORT`: no such address family.
    pub const AFNOSUPPORT: Self = Self(97);
    /// `ENOBUFS`: messages were lost.
    pub const NOBUFS: Self = Self(105);

    /// What an acknowledgement carries: the number, negative.
    #[must_use]
    pub const fn code(self) -> i32 {
        -(self.0 as i32)
    }
}
