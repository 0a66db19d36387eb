//! Reads `[[interface]]`: TUN interfaces beside the main one, for tunnels that routes choose.

use super::checks::{Facts, unique};
use super::gateway::{Link, Of, read_addresses, read_mtu, settle_mtu};
use super::model::{Interface, InterfaceAddress};
use super::negotiated_vpe::{NegotiatedVpe, read_negotiated};
use super::suggest::did_you_mean;
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use testudo_packet::Interface as Number;

/// Interfaces beside the main one at most.
pub const MAX_INTERFACES: usize = 64;
const _: () = assert!(MAX_INTERFACES < Number::MOST);

/// `[[interface]]` before its MTU is settled.
pub(super) struct InterfaceDraft {
    name: Option<Located<String>>,
    if_id: Option<Located<u32>>,
    addresses: Vec<InterfaceAddress>,
    mtu: Option<Located<u16>>,
    vpe: Option<NegotiatedVpe>,
}

impl InterfaceDraft {
    /// Its name, as far as it has one.
    pub(super) fn name(&self) -> Option<&Located<String>> {
        self.name.as_ref()
    }

    /// How its SAs run VPE, if they do.
    pub(super) fn vpe(&self) -> Option<&NegotiatedVpe> {
        self.vpe.as_ref()
    }
}

/// Reads all of them, and notes their names, which tunnels may then have.
pub(super) fn read_interfaces(
    root: &mut Section<'_>,
    walker: &mut Walker<'_>,
    facts: &mut Facts,
) -> Vec<InterfaceDraft> {
    let sections = root.tables(walker, "interface", MAX_INTERFACES);
    let drafts: Vec<_> = sections.into_iter().map(|section| read_interface(section, walker, facts)).collect();
    let names = drafts.iter().map(|draft| draft.name.as_ref().map(|name| name.value.clone()));
    facts.interfaces = names.collect();
    drafts
}

fn read_interface(mut section: Section<'_>, walker: &mut Walker<'_>, facts: &mut Facts) -> InterfaceDraft {
    let name = section.required(walker, "name", "\"ipsec0\"", value::interface);
    if let Some(name) = &name {
        section.rename(format!("interface[{}]", name.value));
    }
    let if_id = section.located(walker, "if_id", |number| {
        let number = value::number(1, u32::MAX.into())(number)?;
        u32::try_from(number).map_err(|_| Problem::expected("a number of 32 bits"))
    });
    let (addresses, mtu) = (read_addresses(&mut section, walker), read_mtu(&mut section, walker));
    let vpe = read_negotiated(&mut section, walker, if_id.is_some(), facts);
    section.finish(walker);
    InterfaceDraft { name, if_id, addresses, mtu, vpe }
}

/// The interface that a tunnel names; the main one if it names none.
pub(super) fn read_name(section: &mut Section<'_>, walker: &mut Walker<'_>, facts: &Facts) -> Option<Number> {
    if section.value("interface").is_none() {
        return Some(Number::MAIN);
    }
    section.optional(walker, "interface", |value| {
        let name = value::interface(value)?;
        let mut numbered = (1..).map(Number).zip(&facts.interfaces);
        let found = numbered.find(|(_, other)| other.as_deref() == Some(&*name));
        found.map(|(number, _)| number).ok_or_else(|| {
            let names = facts.interfaces.iter().flatten().map(String::as_str);
            let help = did_you_mean(&name, names)
                .unwrap_or_else(|| "leave it out for the interface of [port.protected]".to_owned());
            Problem::expected("the name of an [[interface]]").help(help)
        })
    })
}

/// Settles their MTUs, and checks that no two are alike. `main` is the name of the main interface.
pub(super) fn complete(
    drafts: Vec<InterfaceDraft>,
    walker: &mut Walker<'_>,
    link: &Link<'_>,
    main: Option<Located<String>>,
    are_negotiated: bool,
) -> Option<Vec<Interface>> {
    let names = || Problem::expected("a name that no other interface has");
    unique(walker, main.iter().chain(drafts.iter().filter_map(|draft| draft.name.as_ref())), names);
    let if_ids = drafts.iter().filter_map(|draft| draft.if_id.as_ref());
    unique(walker, if_ids, || Problem::expected("an if_id that no other interface has"));
    let numbered = (1..).map(Number).zip(drafts);
    let complete = |(number, draft): (Number, InterfaceDraft)| {
        let InterfaceDraft { name, if_id, addresses, mtu, vpe } = draft;
        let are_negotiated = are_negotiated && if_id.is_some();
        let mtu = settle_mtu(walker, mtu, &Of { number, has_ipv6: false, are_negotiated }, &addresses, link);
        Some(Interface { name: name?.value, if_id: if_id.map(|if_id| if_id.value), vpe, addresses, mtu })
    };
    numbered.map(complete).collect()
}
