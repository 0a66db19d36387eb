//! Runs jobs through an engine and checks that it keeps its contract.

use std::time::{Duration, Instant};
use testudo_crypto::{Engine, Job, JobStatus};

/// How long an engine may hold jobs without any of them ending.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most jobs in one `submit`.
const BURST_JOBS: usize = 256;

/// The SA of all jobs: it exposes an engine that invents names.
const SA: u32 = 0xC00C_1E00;

/// Submits `jobs`, waits until each has ended, and returns them in the order given. Their SA and
/// tickets are replaced.
///
/// Reports each violation of the contract of [`Engine`]: taking more than was submitted, touching a job that
/// was not taken, ending a job twice or never, keeping one that was to end at once, or counting jobs in
/// flight when there are none.
pub fn drive(engine: &mut dyn Engine, mut jobs: Vec<Job>) -> Result<Vec<Job>, String> {
    if engine.in_flight() != 0 {
        return Err(format!("{} jobs are in flight before any was submitted", engine.in_flight()));
    }
    for (ticket, job) in (0..).zip(&mut jobs) {
        (job.sa, job.ticket, job.status) = (SA, ticket, JobStatus::Pending);
    }
    let mut ended: Vec<Option<Job>> = jobs.iter().map(|_| None).collect();
    let (mut next, mut in_flight, mut last_progress) = (0, 0, Instant::now());
    while next < jobs.len() || in_flight > 0 {
        let burst_end = jobs.len().min(next + BURST_JOBS);
        let taken = submit(engine, &mut jobs[next..burst_end], &mut ended, &mut in_flight)?;
        engine.flush();
        let polled = poll(engine, &mut ended, &mut in_flight)?;
        next += taken;
        if taken + polled > 0 {
            last_progress = Instant::now();
        } else if last_progress.elapsed() > PATIENCE {
            return Err(format!("{in_flight} jobs did not end within {PATIENCE:?}"));
        } else {
            std::thread::yield_now();
        }
    }
    ended.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| "a job never ended".to_owned())
}

/// One burst: the jobs taken have ended in place or are in flight; the rest is unchanged.
fn submit(
    engine: &mut dyn Engine,
    burst: &mut [Job],
    ended: &mut [Option<Job>],
    in_flight: &mut usize,
) -> Result<usize, String> {
    let tickets: Vec<u32> = burst.iter().map(|job| job.ticket).collect();
    let before: Vec<Vec<u8>> = burst.iter().map(|job| job.buffer.bytes().to_vec()).collect();
    let ends_at_once = engine.ends_next_at_once(burst);
    let taken = engine.submit(burst);
    if ends_at_once && burst.iter().any(|job| job.status == JobStatus::Taken) {
        return Err("it keeps jobs that were to end at once".to_owned());
    }
    if taken > burst.len() {
        return Err(format!("{taken} of {} jobs were taken", burst.len()));
    }
    let (done, left) = burst.split_at_mut(taken);
    for (job, before) in left.iter().zip(&before[taken..]) {
        if job.status != JobStatus::Pending || job.buffer.bytes() != before {
            return Err("a job that was not taken was touched".to_owned());
        }
    }
    for (job, ticket) in done.iter_mut().zip(tickets) {
        match job.status {
            JobStatus::Pending => return Err("a job was taken and left pending".to_owned()),
            JobStatus::Taken => *in_flight += 1,
            status => {
                let job = Job { status, ..job.take() };
                if job.ticket != ticket {
                    return Err("a ticket was changed".to_owned());
                }
                file(job, ended)?;
            }
        }
    }
    Ok(taken)
}

/// One poll, with a varying bound that must be respected.
fn poll(engine: &mut dyn Engine, ended: &mut [Option<Job>], in_flight: &mut usize) -> Result<usize, String> {
    if engine.in_flight() != *in_flight {
        return Err(format!("in_flight says {}, but {in_flight} jobs are", engine.in_flight()));
    }
    let max = 1 + *in_flight % 97;
    let mut done = Vec::with_capacity(max);
    engine.poll(&mut done, max);
    if done.len() > max || done.len() > *in_flight {
        return Err(format!("{} jobs came from a poll for {max} with {in_flight} in flight", done.len()));
    }
    let count = done.len();
    *in_flight -= count;
    for job in done {
        if matches!(job.status, JobStatus::Pending | JobStatus::Taken) {
            return Err(format!("a job came back {:?}", job.status));
        }
        file(job, ended)?;
    }
    Ok(count)
}

/// Stores an ended job at its index, which must be empty.
fn file(job: Job, ended: &mut [Option<Job>]) -> Result<(), String> {
    let place = if job.sa == SA { ended.get_mut(job.ticket as usize) } else { None };
    match place {
        Some(place @ None) => {
            *place = Some(job);
            Ok(())
        }
        Some(Some(_)) => Err("a job ended twice".to_owned()),
        None => {
            Err(format!("a job came back as {:#x} of SA {:#x}, which was never given", job.ticket, job.sa))
        }
    }
}
