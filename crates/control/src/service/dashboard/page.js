"use strict";
// Asks for /data.json once a second and shows what happened between two answers, as `testudo top` does. Whatever
// the gateway says is put into the page as text, never as markup: names come from configurations and peers.

const INTERVAL_MS = 1000;
const PATIENCE_MS = 4000;
// The gateway has new figures twice a second, unless a client that does not read keeps it from making any.
const STALE_MS = 3000;
const HISTORY = 120;
const STAGES = ["receive", "parse", "policy", "sa", "framing", "cryptography", "finish", "transmit"];
// From this share on a bar says that something has no time left.
const FULL = 0.8;

const at = (id) => document.getElementById(id);
const list = (value) => (Array.isArray(value) ? value : []);
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

function text(id, words) {
  at(id).textContent = words;
}

function digits(number) {
  return number.toFixed(number < 9.995 ? 2 : number < 99.95 ? 1 : 0);
}

// 1234567 is "1.23 M".
function scaled(number, unit) {
  if (typeof number !== "number" || !isFinite(number)) return "–";
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (number >= factor * 0.9995) return `${digits(number / factor)} ${prefix}${unit}`;
  }
  const plain = number === 0 ? "0" : number < 0.01 ? "< 0.01" : Number.isInteger(number) ? `${number}` : digits(number);
  return unit === "" ? plain : `${plain} ${unit}`;
}

function grouped(number) {
  return typeof number === "number" ? number.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f") : "–";
}

// A number with its noun: 1 packet, 2 packets.
const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;

function duration(seconds) {
  const [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

const percent = (share) => (share === null ? "–" : `${(share * 100).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`);
const ratio = (part, whole) => (whole > 0 ? part / whole : null);
const share = (part, whole) => Math.min(1, Math.max(0, ratio(part, whole) ?? 0));

// ---- What happened between two answers.

const totalTicks = (times) => sum(Object.values(times.ticks));

function since(now, then) {
  const ticks = {};
  for (const stage of Object.keys(now.ticks)) ticks[stage] = Math.max(0, now.ticks[stage] - (then.ticks[stage] ?? 0));
  return { ticks, packets: now.packets - then.packets, batches: now.batches - then.batches };
}

// Every reason with its count: the gateway's, and what the devices of fast ports have lost.
function dropsOf(status) {
  const drops = new Map(Object.entries(status.drops));
  for (const side of ["protected", "unprotected"]) {
    const lost = status.ports[side].device?.drops ?? {};
    for (const [reason, count] of Object.entries(lost)) drops.set(`${side} ${reason}`, count);
  }
  return drops;
}

function portChange(now, then, rate, ticks) {
  return {
    rxPackets: rate(now.rx_packets - then.rx_packets), rxBits: 8 * rate(now.rx_bytes - then.rx_bytes),
    txPackets: rate(now.tx_packets - then.tx_packets), txBits: 8 * rate(now.tx_bytes - then.tx_bytes),
    waiting: share(now.waited_ticks - then.waited_ticks, ticks),
  };
}

function workerChange(now, then, rate, ticks, measuredOf) {
  const busyTicks = now.outbound_ticks + now.inbound_ticks - then.outbound_ticks - then.inbound_ticks;
  return {
    outbound: rate(now.protected.rx_packets - then.protected.rx_packets),
    inbound: rate(now.unprotected.rx_packets - then.unprotected.rx_packets),
    dropped: rate(now.dropped - then.dropped),
    busy: share(busyTicks * measuredOf, ticks),
  };
}

// Null if another gateway answers now.
function between(then, now) {
  const [a, b] = [then.status, now.status];
  const seconds = (b.stages.clock.elapsed_ns - a.stages.clock.elapsed_ns) / 1e9;
  const ticks = b.stages.clock.ticks - a.stages.clock.ticks;
  const counters = (status) => ["protected", "unprotected"].flatMap((side) => [status.ports[side].rx_packets, status.ports[side].tx_packets]);
  const earlier = counters(a);
  if (seconds <= 0 || ticks <= 0 || counters(b).some((count, index) => count < earlier[index])) return null;
  const rate = (count) => Math.max(0, count) / seconds;
  const ports = {};
  for (const side of ["protected", "unprotected"]) ports[side] = portChange(b.ports[side], a.ports[side], rate, ticks);
  const [before, drops] = [dropsOf(a), new Map()];
  for (const [reason, count] of dropsOf(b)) drops.set(reason, rate(count - (before.get(reason) ?? 0)));
  const workers = list(b.workers).map((worker, index) =>
    a.workers[index] ? workerChange(worker, a.workers[index], rate, ticks, b.stages.measured_of) : null);
  const running = Math.max(1, list(b.workers).filter((worker) => !worker.parked).length);
  const stages = { outbound: since(b.stages.outbound, a.stages.outbound), inbound: since(b.stages.inbound, a.stages.inbound) };
  const busy = share((totalTicks(stages.outbound) + totalTicks(stages.inbound)) * b.stages.measured_of, ticks * running);
  return { ports, drops, workers, stages, busy, running };
}

// ---- The page.

function cell(row, words, name) {
  const td = row.insertCell();
  td.textContent = words;
  if (name) td.className = name;
  return td;
}

function bar(row, part, name) {
  const [box, track, fill, words] = ["span", "span", "span", "b"].map((tag) => document.createElement(tag));
  box.className = "bar";
  track.className = "track";
  fill.className = `fill ${name ?? (part >= FULL ? "full" : "")}`;
  fill.style.width = `${100 * (part ?? 0)}%`;
  words.textContent = percent(part);
  track.append(fill);
  box.append(track, words);
  row.insertCell().append(box);
}

// Fills a table with a row for each item, or with one that says that there is none.
function fill(id, items, none, draw) {
  const body = document.createElement("tbody");
  for (const item of items) draw(body.insertRow(), item);
  if (items.length === 0) {
    const td = cell(body.insertRow(), none, "words");
    td.colSpan = at(id).tHead.rows[0].cells.length;
  }
  at(id).tBodies[0].replaceWith(body);
}

const rateCell = (row, number, unit) => cell(row, scaled(number, unit), "n");

function showHead(data, change) {
  const { status } = data;
  const inUse = list(status.engines).find((engine) => engine.in_use);
  text("version", status.version);
  text("facts", `up ${duration(status.uptime_seconds)}, cryptography by ${inUse ? inUse.name : "no engine"}`);
  text("sa-count", grouped(data.sas_count));
  text("tunnel-count", `${counted(status.tunnels, "tunnel")} configured, ${grouped(status.tunnels_down)} down`);
  at("tunnel-count").className = status.tunnels_down > 0 ? "bad" : "";
  text("buffers", grouped(status.free_buffers));
  text("drop-total", `${counted(sum([...dropsOf(status).values()]), "packet")} since the start`);
  // The sentence of `testudo top`, from the gateway.
  const bottleneck = data.bottleneck?.words ?? "";
  at("bottleneck").hidden = bottleneck === "";
  if (at("bottleneck").textContent !== bottleneck) text("bottleneck", bottleneck);
  const notes = list(status.imbalance).map((one) => one.words);
  at("notes").hidden = notes.length === 0;
  at("notes").replaceChildren(...notes.map((words) => {
    const item = document.createElement("li");
    item.textContent = words;
    return item;
  }));
  if (!change) return;
  const { protected: inner, unprotected: outer } = change.ports;
  text("out-bits", scaled(inner.rxBits, "bit/s"));
  text("out-packets", `${scaled(inner.rxPackets, "")} packets/s`);
  text("in-bits", scaled(inner.txBits, "bit/s"));
  text("in-packets", `${scaled(outer.rxPackets, "")} packets/s`);
  text("drop-rate", `${scaled(sum([...change.drops.values()]), "")} /s`);
  text("busy", `${percent(change.busy)} busy`);
  text("busy-more", `${change.running} of ${list(status.workers).length} get packets`);
}

function showWorkers(status, change) {
  fill("workers", list(status.workers), "There is no worker.", (row, worker) => {
    const now = change?.workers[worker.worker];
    cell(row, `${worker.worker}, ${worker.parked ? "parked" : worker.role}`, "short");
    bar(row, now ? now.busy : null);
    rateCell(row, now?.outbound, "");
    rateCell(row, now?.inbound, "");
    rateCell(row, now?.dropped, "");
  });
}

function showStages(change) {
  const ways = ["outbound", "inbound"];
  const total = ways.map((way) => (change ? totalTicks(change.stages[way]) : 0));
  fill("stages", STAGES, "", (row, stage) => {
    cell(row, stage === "sa" ? "SA lookup" : stage, "short");
    ways.forEach((way, index) => {
      const times = change?.stages[way];
      const cycles = times ? ratio(times.ticks[stage], times.packets) : null;
      cell(row, cycles === null ? "–" : grouped(Math.round(cycles)), "n");
      bar(row, times ? ratio(times.ticks[stage], total[index]) : null, index === 0 ? "out" : "in");
    });
  });
}

function showPorts(status, change) {
  fill("ports", ["protected", "unprotected"], "", (row, side) => {
    const [port, now] = [status.ports[side], change?.ports[side]];
    cell(row, `${side}: ${port.kind} ${port.name}`);
    rateCell(row, now?.rxPackets, "");
    rateCell(row, now?.rxBits, "");
    rateCell(row, now?.txPackets, "");
    rateCell(row, now?.txBits, "");
    bar(row, now ? now.waiting : null);
  });
}

function showEngines(status) {
  fill("engines", list(status.engines), "There is no engine.", (row, engine) => {
    cell(row, engine.name, "short");
    cell(row, engine.in_use ? "yes" : "no", engine.in_use ? "good" : "");
    cell(row, engine.detail, "words");
  });
}

function showSas(data) {
  const omitted = data.sas_omitted;
  text("sas-more", omitted > 0
    ? `the ${list(data.sas).length} busiest; ${grouped(omitted)} more ${omitted === 1 ? "is" : "are"} in \`testudo sa list\`` : "the busiest first");
  fill("sas", list(data.sas), "There is no SA.", (row, sa) => {
    cell(row, sa.tunnel);
    cell(row, sa.direction, "short");
    cell(row, `0x${sa.spi.toString(16)}`, "short");
    cell(row, sa.state === "installed" && sa.in_use === false ? "not in use" : sa.state, sa.state === "installed" ? "short" : "short bad");
    cell(row, sa.peer ?? sa.remote);
    cell(row, `${sa.encapsulation} ${sa.suite}${sa.esn ? ", esn" : ""}`);
    cell(row, sa.engine ?? "–", "short");
    rateCell(row, sa.packets_per_second, "");
    rateCell(row, sa.bits_per_second, "");
    cell(row, grouped(sa.packets), "n");
    cell(row, grouped(sa.bytes), "n");
    cell(row, grouped(sa.sequence), "n");
    cell(row, grouped(sum(Object.values(sa.drops))), "n");
  });
}

function showDrops(data, change) {
  const occurred = [...dropsOf(data.status)].filter(([, count]) => count > 0);
  const rate = (reason) => change?.drops.get(reason) ?? 0;
  occurred.sort((a, b) => rate(b[0]) - rate(a[0]) || b[1] - a[1]);
  fill("drops", occurred, "No packet has been dropped.", (row, [reason, count]) => {
    cell(row, reason, "short");
    cell(row, change ? scaled(rate(reason), "") : "–", rate(reason) > 0 ? "n bad" : "n");
    cell(row, grouped(count), "n");
    cell(row, data.drop_words[reason] ?? "Lost by the port's device.", "words");
  });
}

const history = [];

function showChart(change) {
  if (change) history.push({ out: change.ports.protected.rxBits, in: change.ports.protected.txBits });
  history.splice(0, Math.max(0, history.length - HISTORY));
  const top = Math.max(1, ...history.flatMap((point) => [point.out, point.in]));
  const make = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  // The first half minute fills from the left; then the lines are as wide as the chart.
  const x = (index) => (600 * index) / (Math.max(history.length, 30) - 1);
  const line = (way) => history.map((point, index) => `${x(index).toFixed(1)},${(97 - (92 * point[way]) / top).toFixed(1)}`).join(" ");
  const rules = [5, 51, 97].map((y) => make("line", { x1: 0, x2: 600, y1: y, y2: y }));
  const lines = ["out", "in"].map((way) => make("polyline", { class: way, points: line(way) }));
  at("chart").replaceChildren(...rules, ...lines);
  text("chart-top", history.length > 0 ? `upper line: ${scaled(top, "bit/s")}` : "");
}

function show(data, change) {
  showHead(data, change);
  showWorkers(data.status, change);
  showStages(change);
  showPorts(data.status, change);
  showEngines(data.status);
  showSas(data);
  showDrops(data, change);
  showChart(change);
}

// ---- Once a second.

let last = null;
// When figures were new: on a clock that nobody sets, and for people.
let news = null;

function say(name, words) {
  at("state").className = name;
  // A screen reader tells changes only.
  if (at("state").textContent !== words) text("state", words);
  document.body.classList.toggle("is-lost", name === "lost");
}

function take(data) {
  const isSame = last && data.status.stages.clock.elapsed_ns === last.status.stages.clock.elapsed_ns;
  if (!isSame) {
    const change = last ? between(last, data) : null;
    if (last && !change) history.length = 0;
    last = data;
    show(data, change);
    news = { at: performance.now(), words: new Date().toLocaleTimeString() };
  }
  if (performance.now() - news.at < STALE_MS) say("live", "live");
  else say("lost", `The gateway has no new figures; the figures are of ${news.words}`);
}

async function ask() {
  const answer = await fetch("/data.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`it says ${answer.status}`);
  take(await answer.json());
}

async function turn() {
  try {
    await ask();
  } catch (error) {
    const since = news ? `; the figures are of ${news.words}` : "";
    say("lost", `The gateway does not answer${since}`);
    console.info(`no answer: ${error.message}`);
  }
  setTimeout(turn, INTERVAL_MS);
}

turn();
