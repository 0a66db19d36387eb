//! XFRM over netlink: how key exchange daemons and `ip xfrm` talk to the Linux kernel's IPsec
//! (`include/uapi/linux/xfrm.h`, as of Linux 6.1 to 6.12, for 64-bit programs).
//!
//! ```text
//!   netlink header │ structure of the type │ attribute │ attribute │ …
//!                   SaInfo, PolicyId, …      algorithm with its key, templates, mark, …
//! ```
//!
//! [`Message`](message::Message) is any of them, in both directions: what it begins with is its
//! [`Body`](message::Body), the rest are [`Attributes`](attribute::Attributes). Numbers are in host order,
//! but for SPIs, ports and addresses, and for keys, which are bytes; the types here have them all as plain
//! numbers.
//!
//! This is the format alone. Lengths are checked, and numbers whose values say how long something is. Whether
//! a mode exists, a prefix is too long, or an AEAD comes with an integrity algorithm is for the server to
//! judge, which has the kernel's own errors for each. For that, values that may be anything are plain
//! numbers, with the constants in the modules below.
//!
//! **Where the kernel is laxer.** It ends its reading silently at an attribute whose length is wrong, at a
//! template that is cut off and at a name without an end. Here these are `EINVAL`: an SA without the mark
//! that was in the half that got lost is not the SA that was meant. Only in requests for a dump such rests
//! are passed over, since old programs put other things there.

pub mod address;
pub mod algorithm;
pub mod attribute;
pub mod info;
pub mod lifetime;
pub mod message;
pub mod notification;
pub mod policy;
pub mod replay;
pub mod sa;
pub mod security;
pub mod selector;
mod structure;

macro_rules! constants {
    ($(#[$doc:meta])* $module:ident: $type:ty, { $($(#[$item_doc:meta])* $name:ident = $value:expr,)* }) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$item_doc])* pub const $name: $type = $value;)*
        }
    };
}

/// The number of the netlink protocol (`NETLINK_XFRM`).
pub const NETLINK_XFRM: i32 = 6;

macro_rules! kinds {
    ($($(#[$doc:meta])* $number:literal $kernel_name:ident $name:ident,)*) => {
        /// Types of messages (`XFRM_MSG_*`).
        pub mod kind {
            $($(#[$doc])* pub const $name: u16 = $number;)*

            /// The kernel's name of a type.
            #[must_use]
            pub const fn name_of(kind: u16) -> Option<&'static str> {
                match kind {
                    $($number => Some(stringify!($kernel_name)),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// An SA.
    0x10 XFRM_MSG_NEWSA NEW_SA,
    /// An SA is to go, or has gone.
    0x11 XFRM_MSG_DELSA DELETE_SA,
    /// Show an SA, or all.
    0x12 XFRM_MSG_GETSA GET_SA,
    /// A policy.
    0x13 XFRM_MSG_NEWPOLICY NEW_POLICY,
    /// A policy is to go, or has gone.
    0x14 XFRM_MSG_DELPOLICY DELETE_POLICY,
    /// Show a policy, or all.
    0x15 XFRM_MSG_GETPOLICY GET_POLICY,
    /// Reserve an SPI.
    0x16 XFRM_MSG_ALLOCSPI ALLOCATE_SPI,
    /// A packet needs an SA.
    0x17 XFRM_MSG_ACQUIRE ACQUIRE,
    /// An SA is at a limit.
    0x18 XFRM_MSG_EXPIRE EXPIRE,
    /// A policy that may replace one.
    0x19 XFRM_MSG_UPDPOLICY UPDATE_POLICY,
    /// An SA that changes one.
    0x1A XFRM_MSG_UPDSA UPDATE_SA,
    /// A policy is at a limit.
    0x1B XFRM_MSG_POLEXPIRE POLICY_EXPIRE,
    /// All SAs are to go, or have gone.
    0x1C XFRM_MSG_FLUSHSA FLUSH_SAS,
    /// All policies are to go, or have gone.
    0x1D XFRM_MSG_FLUSHPOLICY FLUSH_POLICIES,
    /// Numbers and use of an SA.
    0x1E XFRM_MSG_NEWAE NEW_EVENT,
    /// Show numbers and use of an SA.
    0x1F XFRM_MSG_GETAE GET_EVENT,
    /// A packet was refused.
    0x20 XFRM_MSG_REPORT REPORT,
    /// SAs and policies are to move, or have moved.
    0x21 XFRM_MSG_MIGRATE MIGRATE,
    /// How many SAs there are.
    0x22 XFRM_MSG_NEWSADINFO SAD_INFO,
    /// Say how many SAs there are.
    0x23 XFRM_MSG_GETSADINFO GET_SAD_INFO,
    /// How many policies there are.
    0x24 XFRM_MSG_NEWSPDINFO SPD_INFO,
    /// Say how many policies there are.
    0x25 XFRM_MSG_GETSPDINFO GET_SPD_INFO,
    /// A peer's address has changed.
    0x26 XFRM_MSG_MAPPING MAPPING,
    /// Set what becomes of packets without a policy.
    0x27 XFRM_MSG_SETDEFAULT SET_DEFAULTS,
    /// Say what becomes of packets without a policy.
    0x28 XFRM_MSG_GETDEFAULT GET_DEFAULTS,
}

constants! {
    /// Groups of notifications (`XFRMNLGRP_*`); a socket binds to a mask in which bit n - 1 is group n.
    group: u32, {
        /// [`ACQUIRE`](super::kind::ACQUIRE).
        ACQUIRE = 1,
        /// [`EXPIRE`](super::kind::EXPIRE) and [`POLICY_EXPIRE`](super::kind::POLICY_EXPIRE).
        EXPIRE = 2,
        /// SAs: new, changed, deleted, flushed.
        SA = 3,
        /// Policies: new, changed, deleted, flushed; defaults.
        POLICY = 4,
        /// [`NEW_EVENT`](super::kind::NEW_EVENT).
        EVENT = 5,
        /// [`REPORT`](super::kind::REPORT).
        REPORT = 6,
        /// [`MIGRATE`](super::kind::MIGRATE).
        MIGRATE = 7,
        /// [`MAPPING`](super::kind::MAPPING).
        MAPPING = 8,
    }
}

constants! {
    /// Address families of Linux.
    family: u16, {
        /// Not said.
        UNSPECIFIED = 0,
        /// IPv4.
        IPV4 = 2,
        /// IPv6.
        IPV6 = 10,
    }
}

constants! {
    /// Modes of SAs (RFC 4301 4.1).
    mode: u8, {
        /// Transport mode.
        TRANSPORT = 0,
        /// Tunnel mode.
        TUNNEL = 1,
        /// Route optimization of Mobile IPv6.
        ROUTE_OPTIMIZATION = 2,
        /// Inbound trigger of Mobile IPv6.
        IN_TRIGGER = 3,
        /// Bound end-to-end tunnel.
        BEET = 4,
    }
}

constants! {
    /// Flags of SAs (`XFRM_STATE_*`).
    sa_flag: u8, {
        /// ECN is not copied.
        NO_ECN = 1,
        /// The DSCP of the outer header goes into the inner one.
        DECAP_DSCP = 2,
        /// The DF bit is clear.
        NO_PMTU_DISCOVERY = 4,
        /// Any source address is received.
        WILD_RECEIVE = 8,
        /// ICMP errors are checked by what they quote.
        ICMP = 16,
        /// The selector's family may be another than the SA's.
        AF_UNSPEC = 32,
        /// AH is padded to 4 bytes over IPv4.
        ALIGN4 = 64,
        /// Extended sequence numbers (RFC 4303 2.2.1).
        ESN = 128,
    }
}

constants! {
    /// More flags of SAs (`XFRM_SA_XFLAG_*`).
    sa_extra_flag: u32, {
        /// The outer DSCP is 0.
        DONT_ENCAP_DSCP = 1,
        /// Sequence numbers may start again.
        SEQUENCE_MAY_WRAP = 2,
    }
}

constants! {
    /// Which packets a policy is for (`XFRM_POLICY_IN` …).
    direction: u8, {
        /// For this host.
        IN = 0,
        /// From this host, or from others through it.
        OUT = 1,
        /// From an SA, for other hosts.
        FORWARD = 2,
    }
}

constants! {
    /// What a policy does.
    action: u8, {
        /// Protects by its templates; without any, bypasses.
        ALLOW = 0,
        /// Discards.
        BLOCK = 1,
    }
}

constants! {
    /// Flags of policies (`XFRM_POLICY_*`).
    policy_flag: u8, {
        /// Sockets may have their own.
        LOCAL_OK = 1,
        /// ICMP errors are checked by what they quote.
        ICMP = 2,
        /// Each processor acquires an SA of its own (RFC 9611), since Linux 6.13.
        CPU_ACQUIRE = 4,
    }
}

constants! {
    /// Who shares the SAs of a template.
    share: u8, {
        /// Everyone.
        ANY = 0,
        /// One session.
        SESSION = 1,
        /// One user.
        USER = 2,
        /// Used once.
        UNIQUE = 3,
    }
}

constants! {
    /// Tables of policies (`XFRM_POLICY_TYPE_*`).
    policy_type: u8, {
        /// The main one.
        MAIN = 0,
        /// The one that comes first, for Mobile IPv6.
        SUB = 1,
        /// Any.
        ANY = 255,
    }
}

constants! {
    /// What becomes of packets without a policy (`XFRM_USERPOLICY_*`).
    default_action: u8, {
        /// As it was.
        UNSPECIFIED = 0,
        /// Discarded.
        BLOCK = 1,
        /// Bypassed.
        ACCEPT = 2,
    }
}

constants! {
    /// Encapsulations of ESP.
    encapsulation: u16, {
        /// In UDP, of a draft, with 8 zeros.
        ESP_IN_UDP_NON_IKE = 1,
        /// In UDP (RFC 3948).
        ESP_IN_UDP = 2,
        /// In TCP (RFC 8229).
        ESP_IN_TCP = 7,
    }
}

constants! {
    /// Why numbers and use of an SA are told, and what of them (`XFRM_AE_*`).
    event_flag: u32, {
        /// The threshold of packets.
        REPLAY_THRESHOLD = 1,
        /// The numbers.
        REPLAY_VALUE = 2,
        /// The use.
        LIFETIME_VALUE = 4,
        /// The threshold of time.
        TIMER_THRESHOLD = 8,
        /// Since so many packets have passed.
        CAUSE_REPLAY = 16,
        /// Since so much time has passed.
        CAUSE_TIMER = 32,
        /// Since they were set.
        CAUSE_UPDATE = 64,
    }
}

constants! {
    /// Flags of offloads (`XFRM_OFFLOAD_*`).
    offload_flag: u8, {
        /// Without meaning; strongSwan sets it.
        IPV6 = 1,
        /// The SA is for received packets.
        INBOUND = 2,
        /// The device does all of it, not only the cryptography.
        PACKET = 4,
    }
}
