//! What the browser shows.

use crate::browser::Browser;
use crate::support::link::Link;
use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure};
use crate::{busy_pair, stop};
use std::path::PathBuf;
use std::time::Instant;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::traffic::{Load, Stream};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("a_browser_shows_rates_workers_stages_sas_and_drops", shows_what_happens)
        .test("a_browser_is_told_when_the_gateway_is_gone_and_when_it_is_back", tells_that_it_is_lost)
        .test("a_browser_is_told_when_figures_stand_still", tells_that_figures_are_old)
        .test("what_the_gateway_says_is_text_and_never_markup", escapes)
}

const URL: &str = "http://127.0.0.1:9469/";

/// What a row of the page's table says, of the row that has `words`.
fn row(table: &str, words: &str) -> String {
    format!(
        "[...document.querySelectorAll('#{table} tbody tr')].find((row) => row.innerText.includes('{words}'))"
    )
}

/// A figure of the page as a number, without its unit.
fn number(id: &str) -> String {
    format!("parseFloat(document.getElementById('{id}').textContent)")
}

/// Where pictures are kept, for people.
fn pictures() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Keeps a picture, and checks that it is one of this size with something on it.
fn keep(picture: &[u8], name: &str, (width, height): (u32, u32)) -> Outcome<()> {
    std::fs::write(pictures().join(name), picture)?;
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let is_png = picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.get(16..24) == Some(&size[..]);
    ensure(is_png && picture.len() > 10_000, || format!("{name} has {} bytes", picture.len()))
}

fn shows_what_happens(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let load = Load { per_second: 2000.0, bytes: 1000 };
    let there = Stream::start_with((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"), load)?;
    let back = Stream::start_with((&link.b, "10.2.0.1"), (&link.a, "10.1.0.1"), load)?;
    let mut browser = Browser::start(&link.a, "browser")?;
    browser.resize((1280, 900), false)?;
    browser.go(URL)?;
    let state = "document.getElementById('state')";
    browser.until("for data", &format!("{state} && {state}.className === 'live'"))?;
    for id in ["out-bits", "out-packets", "in-bits", "in-packets"] {
        browser.until("for a rate", &format!("{} > 0", number(id)))?;
    }
    let sent = row("sas", "outbound");
    browser.until("for the tunnel's name", &format!("{sent} && {sent}.cells[0].innerText === 'a-b'"))?;
    browser.until("for an SA's rate", &format!("parseFloat({sent}.cells[7].innerText) > 0"))?;
    browser.until(
        "for a worker",
        &format!("parseFloat({}.cells[2].innerText) > 0", row("workers", "0, both")),
    )?;
    browser.until(
        "for a stage",
        &format!("parseFloat({}.cells[1].innerText) > 0", row("stages", "cryptography")),
    )?;
    let crypto =
        format!("{}.querySelector('.fill').getBoundingClientRect().width > 0", row("stages", "cryptography"));
    browser.until("for a stage's bar", &crypto)?;
    browser.until("for the ports", &row("ports", "testudo0"))?;
    browser.until("for the engines", &row("engines", "portable"))?;
    browser.until("for the chart", "document.querySelector('#chart polyline').points.length >= 8")?;
    // The sentence is top's, of the gateway's own data: the page reckons nothing of it.
    let sentence = "document.getElementById('bottleneck')";
    browser.until("for the bottleneck", &format!("!{sentence}.hidden && {sentence}.innerText !== ''"))?;
    let kept = format!(
        "fetch('/data.json').then((answer) => answer.json()).then((data) => data.bottleneck.words === {sentence}.innerText)"
    );
    // Data are new twice a second, the page asks once.
    let deadline = Instant::now() + PATIENCE;
    while browser.value(&kept)? != true {
        ensure(Instant::now() < deadline, || {
            "the page shows another sentence than its data have".to_owned()
        })?;
    }
    let told = browser.value(&format!("{sentence}.innerText"))?;
    let told = told.as_str().unwrap_or_default();
    ensure(told.starts_with("bottleneck: ") || told.contains("bottleneck is not this gateway"), || {
        format!("{told:?} is no sentence of top's")
    })?;
    // What no policy names is dropped, with the reason in words.
    let stray = link.a.within(|| std::net::UdpSocket::bind("10.1.0.1:0"))??;
    link.a.route_into("10.99.0.0/16", "testudo0")?;
    stray.send_to(b"nobody wants this", "10.99.0.1:7")?;
    let dropped = row("drops", "no_policy");
    browser
        .until("for a drop", &format!("{dropped} && {dropped}.innerText.includes('No policy matched')"))?;
    for (name, size, is_dark) in [
        ("dashboard.png", (1280, 1130), false),
        ("dashboard-dark.png", (1280, 900), true),
        ("dashboard-phone.png", (390, 844), true),
    ] {
        browser.resize(size, is_dark)?;
        let wide = browser.value("document.documentElement.scrollWidth")?;
        ensure(wide.as_u64() <= Some(size.0.into()), || {
            format!("{name} is {wide} wide, wider than its window")
        })?;
        keep(&browser.picture()?, name, size)?;
        let background = browser.value("getComputedStyle(document.body).backgroundColor")?;
        ensure((background == "rgb(16, 20, 24)") == is_dark, || format!("{name}: {background}"))?;
    }
    let complaints = browser.complaints();
    ensure(complaints.is_empty(), || format!("{complaints:#?}"))?;
    let loaded =
        browser.value("performance.getEntriesByType('resource').map((one) => one.name).join(' ')")?;
    let loaded = loaded.as_str().unwrap_or_default();
    ensure(loaded.split(' ').all(|one| one.starts_with(URL)) && loaded.contains("data.json"), || {
        loaded.to_owned()
    })?;
    there.end()?;
    back.end()?;
    stop(pair)
}

fn tells_that_it_is_lost(link: &mut Link) -> TestResult {
    let [gateway, peer] = busy_pair(link)?;
    let mut browser = Browser::start(&link.a, "browser-lost")?;
    browser.go(URL)?;
    let state = "document.getElementById('state')";
    browser.until("for data", &format!("{state} && {state}.className === 'live'"))?;
    gateway.stop()?;
    let told = format!(
        "{state}.className === 'lost' && {state}.innerText.startsWith('The gateway does not answer; the figures are of')"
    );
    browser.until("for the loss to be told", &told)?;
    browser.until("for the figures to fade", "document.body.classList.contains('is-lost')")?;
    // Nobody answers now: what stands there later has been said since.
    let wiped =
        "document.getElementById('busy').textContent = ''; document.getElementById('facts').textContent = ''";
    browser.value(wiped)?;
    peer.stop()?;
    let pair = busy_pair(link)?;
    browser.until("for the gateway to be back", &format!("{state}.className === 'live'"))?;
    browser.until("for new facts", "document.getElementById('facts').textContent.startsWith('up ')")?;
    browser.until("for new rates", "document.getElementById('busy').textContent.includes('busy')")?;
    stop(pair)
}

/// The first answer comes again and again, until `thaw()`.
const FROZEN: &str = "
    (() => {
        const real = window.fetch;
        let kept = null;
        window.fetch = async (...question) => {
            kept ??= await (await real(...question)).json();
            return { ok: true, json: async () => structuredClone(kept) };
        };
        window.thaw = () => { window.fetch = real; };
        return true;
    })()
";

fn tells_that_figures_are_old(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let mut browser = Browser::start(&link.a, "browser-still")?;
    browser.go(URL)?;
    let state = "document.getElementById('state')";
    let live = format!("{state} && {state}.className === 'live'");
    browser.until("for data", &live)?;
    browser.value(FROZEN)?;
    let told = format!(
        "{state}.className === 'lost' && {state}.innerText.startsWith('The gateway has no new figures; the figures are of')"
    );
    browser.until("for old figures to be told", &told)?;
    browser.until("for the figures to fade", "document.body.classList.contains('is-lost')")?;
    browser.value("window.thaw(), true")?;
    browser.until("for new figures", &live)?;
    browser.until("for the figures to be seen", "!document.body.classList.contains('is-lost')")?;
    stop(pair)
}

/// Every string of the data becomes markup that would run a script and load an image; some keys, too.
const HOSTILE: &str = r#"
    (() => {
        const hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>';
        const poison = (value) => {
            if (typeof value === 'string') return hostile + value;
            if (Array.isArray(value)) return value.map(poison);
            if (value === null || typeof value !== 'object') return value;
            return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, poison(inner)]));
        };
        const real = window.fetch.bind(window);
        window.fetch = async (...question) => {
            const data = poison(await (await real(...question)).json());
            data.status.drops = { [hostile + 'reason']: 7 };
            data.status.imbalance = [{ words: hostile + 'imbalance' }];
            data.status.ports.protected.device = { drops: { [hostile + 'device']: 7 } };
            return { ok: true, json: async () => data };
        };
        return true;
    })()
"#;

fn escapes(link: &mut Link) -> TestResult {
    let pair = busy_pair(link)?;
    let mut browser = Browser::start(&link.a, "browser-hostile")?;
    browser.go(URL)?;
    let state = "document.getElementById('state')";
    browser.until("for data", &format!("{state} && {state}.className === 'live'"))?;
    browser.value(HOSTILE)?;
    for (table, words) in [
        ("sas", "a-b"),
        ("drops", "reason"),
        ("drops", "device"),
        ("engines", "portable"),
        ("ports", "testudo0"),
        ("workers", "both"),
    ] {
        let shown = row(table, &format!(">{words}"));
        browser.until(
            &format!("for {words} as text"),
            &format!("{shown} && {shown}.innerText.includes('<img src=x')"),
        )?;
    }
    browser.until("for notes", "document.getElementById('notes').innerText.includes('<img')")?;
    let sentence = "document.getElementById('bottleneck').innerText";
    browser.until("for the bottleneck as text", &format!("{sentence}.includes('<img src=x')"))?;
    browser.until("for the version", "document.getElementById('version').innerText.includes('<script>')")?;
    let made = browser.value("document.querySelectorAll('img').length + document.scripts.length")?;
    let title = browser.value("document.title")?;
    ensure(made == 1 && title == "Testudo", || format!("{made} images and scripts, titled {title}"))?;
    let complaints = browser.complaints();
    ensure(complaints.is_empty(), || format!("{complaints:#?}"))?;
    stop(pair)
}
