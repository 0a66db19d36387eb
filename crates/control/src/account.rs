//! The service's account, as its unit file names it (contrib/testudo.sysusers.conf). Root must know it as
//! well: `check`, `init` and a `run` by hand should agree with what the service may read and owns.

use std::fs;

/// The name of both the user and the group.
const NAME: &str = "testudo";

/// The service's user id, if this system has one.
pub(crate) fn user() -> Option<u32> {
    user_named(NAME)
}

/// The id of a user, if this system has one of that name.
pub(crate) fn user_named(name: &str) -> Option<u32> {
    id(&fs::read_to_string("/etc/passwd").ok()?, name)
}

/// The service's group id, if this system has one.
pub(crate) fn group() -> Option<u32> {
    id(&fs::read_to_string("/etc/group").ok()?, NAME)
}

/// The id of `name` in the text of passwd(5) or group(5): `name:password:number:…`
fn id(text: &str, name: &str) -> Option<u32> {
    let fields = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1).map(str::to_owned))
    };
    text.lines().find_map(fields)??.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::id;

    #[test]
    fn an_account_is_found_by_its_name_alone() {
        let groups = "root:x:0:\n# testudo:x:1:\ntestudo-x:x:2:\nx:testudo:3:testudo\n:\n\ntestudo:x:998:\n";
        assert_eq!(id(groups, "testudo"), Some(998));
        assert_eq!(id("root:x:0:0::/root:/bin/sh\ntestudo:!:997:998::/:/bin/false", "testudo"), Some(997));
        for broken in ["", "testudo", "testudo:x", "testudo:x:", "testudo:x:-1:", "testudo:x:99999999999:"] {
            assert_eq!(id(broken, "testudo"), None, "{broken}");
        }
    }
}
