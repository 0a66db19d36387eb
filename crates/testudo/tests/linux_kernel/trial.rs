//! Tries rows: those of a lot stand side by side, and have their traffic one after the other.

use crate::engines::Engines;
use crate::site::{Lot, Site, places};
use crate::slot::Slot;
use crate::support::{Outcome, ensure};
use crate::traffic::{Load, exchange, tcp_from_the_guest};
use testudo_judge::interop::{Row, Verdict};

/// What became of each row, with a gateway that has these engines. The rows of a lot that does not come up
/// are tried alone, so that one is to blame.
///
/// # Errors
/// The guest was lost.
pub fn try_rows(site: &mut Site, rows: &[Row], engines: Engines, load: Load) -> Outcome<Vec<(Row, Verdict)>> {
    let mut lot = match site.connect(rows, engines, |_| {}) {
        Ok(lot) => lot,
        Err(error) => {
            // Fails in its turn if the guest does not answer.
            site.statistics()?;
            if let [row] = rows {
                return Ok(vec![(*row, Verdict::Fail(error.to_string()))]);
            }
            let alone = rows.iter().map(|row| try_rows(site, std::slice::from_ref(row), engines, load));
            return Ok(alone.collect::<Outcome<Vec<_>>>()?.concat());
        }
    };
    let mut verdicts: Vec<(Row, Verdict)> = Vec::new();
    for (row, reason) in std::mem::take(&mut lot.refused) {
        verdicts.push((row, Verdict::Lacking(reason)));
    }
    for (row, slot, tunnel) in std::mem::take(&mut lot.standing) {
        let verdict = match pass(site, &mut lot, &row, slot, &tunnel, load) {
            Ok(()) => Verdict::Pass,
            Err(error) => Verdict::Fail(explained(site, &mut lot, &tunnel, &error.to_string())?),
        };
        verdicts.push((row, verdict));
    }
    lot.gateway.stop()?;
    Ok(verdicts)
}

/// The traffic of a row, and what both ends say of it.
fn pass(site: &mut Site, lot: &mut Lot, row: &Row, slot: Slot, tunnel: &str, load: Load) -> Outcome<()> {
    let places = places(row, slot);
    let before = lot.given_to_the_gpu()?;
    for (ours, theirs) in &places {
        exchange(site, ours, theirs, load)?;
    }
    if load.tcp_bytes == Load::HEAVY.tcp_bytes {
        // The other version inside than outside, in tunnel mode.
        let (ours, _) = &places[usize::from(!row.ipv6 && places.len() > 1)];
        tcp_from_the_guest(site, ours, load.tcp_bytes)?;
    }
    lot.books(site, tunnel)?;
    let now = lot.given_to_the_gpu()?;
    ensure(now > before || before.is_none(), || format!("the GPU had {now:?} packets, all before this row"))
}

/// A failure with what both ends counted meanwhile. Later rows of the lot are not blamed for it.
fn explained(site: &mut Site, lot: &mut Lot, tunnel: &str, error: &str) -> Outcome<String> {
    let drops = lot.drops()?;
    let errors = lot.errors_of_linux(site)?;
    let mut reason = format!("{error}; packets: {}", lot.packets(tunnel)?);
    if !drops.is_empty() && !error.contains("dropped") {
        reason += &format!("; Testudo dropped {drops:?}");
    }
    if !errors.is_empty() {
        reason += &format!("; Linux counted {errors}");
    }
    Ok(reason)
}
