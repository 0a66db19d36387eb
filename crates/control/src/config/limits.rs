//! Limits of SAs as they are kept: most SAs have none, and many are kept.

use super::model::Tunnel;
use testudo_ipsec::Lifetime;

/// Limits as an SA or a tunnel keeps them; `None` if there are none.
#[must_use]
pub fn limits_of(lifetime: Lifetime) -> Option<Box<Lifetime>> {
    (lifetime != Lifetime::default()).then(|| Box::new(lifetime))
}

/// The reverse of [`limits_of`].
#[must_use]
pub fn lifetime_of(limits: Option<&Lifetime>) -> Lifetime {
    limits.copied().unwrap_or_default()
}

impl Tunnel {
    /// When its keys wear out.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        lifetime_of(self.limits.as_deref())
    }
}
