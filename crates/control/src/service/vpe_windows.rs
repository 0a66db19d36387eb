//! The windows of SAs of VPE (`docs/VPE.md`), as reports have them.

use super::installed::InstalledTunnels;
use serde_json::{Value, json};
use testudo_ipsec::{IpsecProtocol, WindowsSeen};

/// The windows of an SA of VPE.
pub(super) fn windows(seen: WindowsSeen) -> Value {
    let tops = seen.tops.iter().map(|(window, sequence)| json!({ "window": window, "sequence": sequence }));
    json!({
        "count": seen.count,
        "most": seen.most,
        "tops": tops.collect::<Vec<_>>(),
        "omitted": seen.count.saturating_sub(seen.tops.len() as u64),
    })
}

/// How many windows the SAs of VPE have, in each direction; `None` where no tunnel is of VPE.
pub(super) fn windows_of_all(installed: &InstalledTunnels) -> Option<Value> {
    let mut sums = [(0, 0); 2];
    let mut is_any = false;
    for running in installed.all().filter(|running| running.tunnel.protocol == IpsecProtocol::Vpe) {
        is_any = true;
        for sa in running.sas.lock().iter() {
            let outbound = sa.is_outbound();
            let seen = sa.added.as_ref().and_then(|added| added.counters.windows(outbound));
            let (count, most) = seen.map_or((0, 0), |seen| (seen.count, seen.most));
            let sum = &mut sums[usize::from(outbound)];
            *sum = (sum.0 + count, sum.1 + most);
        }
    }
    let [inbound, outbound] = sums.map(|(count, most)| json!({ "count": count, "most": most }));
    is_any.then(|| json!({ "inbound": inbound, "outbound": outbound }))
}
