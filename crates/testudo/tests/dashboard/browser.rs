//! Chromium without a screen, told what to do by the DevTools protocol: messages of JSON, each ended by a
//! NUL, over a pair of pipes. Nothing listens anywhere.

use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure, folder};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use testudo_lab::namespaces::Namespace;

const CHROMIUM: &str = "/usr/bin/chromium";
/// A browser's first page takes its time on a busy machine.
const START: Duration = Duration::from_secs(120);
/// The protocol's pipes are descriptors 3 and 4.
const WITH_PIPES: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >&2";

/// A browser with one page. Dropping it ends it.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    sent: u64,
    /// What the page and the browser complained of.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts a browser that sees the network of `namespace`, with its files below a new folder of this name.
    pub fn start(namespace: &Namespace, name: &str) -> Outcome<Self> {
        ensure(std::path::Path::new(CHROMIUM).exists(), || {
            format!("{CHROMIUM} is missing: install the package chromium (tests/packages-dashboard.txt)")
        })?;
        let home = folder(name)?;
        let mut command = namespace.command("sh");
        command.args(["-c", WITH_PIPES, "sh", CHROMIUM]);
        // The sandbox of Chromium needs a user that is not root; what it shows here is ours.
        command.args([
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ]);
        command.args(["--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]);
        command.args(["--disable-background-networking", "--disable-component-update", "--no-proxy-server"]);
        command.arg(format!("--user-data-dir={}", home.join("profile").display())).env("HOME", &home);
        let log = File::create(home.join("log"))?;
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(log)).spawn()?;
        let (to, output) = (child.stdin.take().ok_or("no pipe")?, child.stdout.take().ok_or("no pipe")?);
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let Ok(Ok(message)) = message.map(|bytes| serde_json::from_slice(&bytes)) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { child, to, from, session: None, sent: 0, complaints: Vec::new() };
        let opened = browser.open();
        let log = || std::fs::read_to_string(home.join("log")).unwrap_or_default();
        opened.map_err(|error| format!("{error}\n{}", log()))?;
        Ok(browser)
    }

    fn open(&mut self) -> Outcome<()> {
        let target = self.ask_within(START, "Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = self.ask_within(START, "Target.attachToTarget", attach)?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            self.ask_within(START, domain, json!({}))?;
        }
        Ok(())
    }

    /// Sends a command of the protocol, and waits for its result.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Outcome<Value> {
        self.ask_within(PATIENCE, method, parameters)
    }

    fn ask_within(&mut self, limit: Duration, method: &str, parameters: Value) -> Outcome<Value> {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.to.write_all(message.to_string().as_bytes())?;
        self.to.write_all(&[0])?;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let said = self.from.recv_timeout(left);
            let said = said.map_err(|error| format!("{method}: the browser says nothing: {error}"))?;
            if said["id"] != self.sent {
                self.note(&said);
                continue;
            }
            ensure(said.get("error").is_none(), || format!("{method}: {}", said["error"]))?;
            return Ok(said["result"].clone());
        }
    }

    /// Keeps what is no answer but a complaint: an exception, or a refusal of the page's policy.
    fn note(&mut self, event: &Value) {
        let is_error = event["params"]["entry"]["level"] == "error";
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(event["params"].to_string()),
            Some("Log.entryAdded") if is_error => self.complaints.push(event["params"]["entry"].to_string()),
            _ => {}
        }
    }

    /// Complaints so far, which are forgotten.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    pub fn go(&mut self, url: &str) -> Outcome<()> {
        let gone = self.ask("Page.navigate", json!({ "url": url }))?;
        ensure(gone.get("errorText").is_none(), || format!("{url}: {gone}"))
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Outcome<Value> {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let said = self.ask("Runtime.evaluate", asked)?;
        ensure(said.get("exceptionDetails").is_none(), || format!("{expression}: {said}"))?;
        Ok(said["result"]["value"].clone())
    }

    /// Waits until an expression of the page is true.
    pub fn until(&mut self, what: &str, expression: &str) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.value(&format!("Boolean({expression})"))? != true {
            if Instant::now() > deadline {
                let page = self.value("document.body.innerText")?;
                let complaints = self.complaints.join("\n");
                return Err(format!("waited in vain {what}:\n{page}\n{complaints}").into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Makes the page so many pixels wide and high, in light or dark colours.
    pub fn resize(&mut self, (width, height): (u32, u32), is_dark: bool) -> Outcome<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.ask("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features }))?;
        Ok(())
    }

    /// A picture of what is visible, as PNG.
    pub fn picture(&mut self) -> Outcome<Vec<u8>> {
        let taken = self.ask("Page.captureScreenshot", json!({ "format": "png" }))?;
        base64(taken["data"].as_str().ok_or("no picture")?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own processes end with it when it is asked; a kill would leave them.
        let closed = self.session.take().is_none() || self.ask("Browser.close", json!({})).is_ok();
        if !closed || crate::support::wait::ended(&mut self.child).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// RFC 4648 4.
fn base64(text: &str) -> Outcome<Vec<u8>> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|other| *other == letter).ok_or("no base64")?;
        (bits, count) = (bits << 6 | u32::try_from(value)?, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xFF) as u8);
        }
    }
    Ok(bytes)
}
