//! Frames that an engine writes are those that the CPU writes.

use super::finish_together;
use crate::frame::complete;
use crate::{
    Direction, Engine, EngineError, Job, JobStatus, KeyFrame, KeyId, KeyMaterial, PortableEngine, Suite,
    Trailer,
};
use testudo_packet::Buffer;

const FRAME: KeyFrame = KeyFrame::new(0x8123_4567, 0x89AB_CDEF_0123_4567);
const NUMBER: u64 = 0xF1E2_D3C4_B5A6_9788;
const IPV6: u8 = 41;
/// Packets that the engine gets at once: more than the lanes of a warp.
const TOGETHER: usize = 40;

/// Has an engine seal packets whose frames it writes, with ESN and without, all of them at once, and the
/// portable engine the same ones with their frames; the room of the first is full of ones.
pub(super) fn check(engine: &mut dyn Engine, suite: Suite) -> Result<(), EngineError> {
    let name = engine.name();
    let failed = |what: &str| EngineError::SelfTest {
        engine: name,
        reason: format!("a frame that it writes in {suite}: {what}"),
    };
    let bytes: Vec<u8> = (1..=u8::MAX).cycle().take(suite.keying_material_bytes()).collect();
    let material = KeyMaterial::new(suite, bytes.into()).map_err(|_| failed("malformed"))?;
    let mut portable = PortableEngine::new();
    let own = portable.install(&material, Direction::Seal)?;
    let key = engine.install(&material.with_frame(FRAME), Direction::Seal)?;
    for esn in [false, true] {
        let jobs = |key| (0..TOGETHER).map(|n| job(suite, esn, key, n)).collect::<Option<Vec<Job>>>();
        let (Some(left), Some(mut whole)) = (jobs(key), jobs(own)) else { return Err(failed("malformed")) };
        if !whole.iter_mut().all(|job| complete(job, FRAME, suite)) {
            return Err(failed("malformed"));
        }
        let (left, whole) = (finish_together(engine, left), finish_together(&mut portable, whole));
        let (Some(left), Some(whole)) = (left, whole) else { return Err(failed("no answer in time")) };
        let is_right = |(left, whole): (&Job, &Job)| {
            let have_ended = [left, whole].iter().all(|job| job.status == JobStatus::Done);
            have_ended && left.unwritten.trailer().is_none() && left.buffer.bytes() == whole.buffer.bytes()
        };
        if !left.iter().zip(&whole).all(is_right) {
            return Err(failed("wrong answer"));
        }
    }
    engine.remove(key);
    Ok(())
}

/// The packet of this number: of as many lengths, with the most padding of its suite downwards.
fn job(suite: Suite, esn: bool, key: KeyId, n: usize) -> Option<Job> {
    let text_start = 8 + suite.iv_bytes();
    let alignment = suite.alignment_bytes();
    let trailer = Trailer::new(u8::try_from(alignment - 1 - n % alignment).ok()?, IPV6);
    let text_bytes = ((3 + n) * alignment + trailer.bytes()).next_multiple_of(alignment);
    let mut packet = vec![0xFF; text_start + text_bytes + suite.icv_bytes()];
    let payload = packet.get_mut(text_start..text_start + text_bytes - trailer.bytes())?;
    payload.iter_mut().zip((1..=u8::MAX).cycle()).for_each(|(byte, n)| *byte = n);
    Some(Job {
        sequence: NUMBER + n as u64,
        ticket: u32::try_from(n).ok()?,
        key,
        text_start: u32::try_from(text_start).ok()?,
        text_bytes: u32::try_from(text_bytes).ok()?,
        esn,
        unwritten: trailer.into(),
        ..Job::new(Buffer::copied(&packet, 0, 0), Direction::Seal, 0)
    })
}

#[cfg(test)]
mod tests {
    use crate::{
        Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine, Suite, frame,
        self_test,
    };

    /// The portable engine, which writes the frames of its only SA and then spoils them in one way.
    struct Framing(PortableEngine, Option<KeyMaterial>, fn(&mut Job));

    impl Engine for Framing {
        fn name(&self) -> &'static str {
            "framing"
        }
        fn description(&self) -> String {
            String::new()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            Some(Capability { writes_frames: true, ..self.0.capability(suite)? })
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.1 = Some(key.clone());
            self.0.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.0.remove(key);
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            for job in jobs.iter_mut().filter(|job| job.unwritten.trailer().is_some()) {
                let key = self.1.as_ref().unwrap();
                assert!(frame::complete(job, key.frame().unwrap(), key.suite()));
                (self.2)(job);
            }
            self.0.submit(jobs)
        }
    }

    #[test]
    fn an_engine_that_writes_frames_must_write_them_right() {
        assert_eq!(self_test(&mut Framing(PortableEngine::new(), None, |_| {})), Ok(()));
        let spoil: [fn(&mut Job); 5] = [
            // Right in the first of those that it gets together.
            |job| job.buffer.bytes_mut()[3] ^= u8::from(job.ticket > 0),
            |job| job.buffer.bytes_mut()[3] ^= 1,
            |job| job.buffer.bytes_mut()[7] ^= 1,
            |job| job.buffer.bytes_mut()[(job.text_start + job.text_bytes - 1) as usize] ^= 1,
            |job| job.buffer.bytes_mut()[(job.text_start + job.text_bytes - 3) as usize] ^= 1,
        ];
        for how in spoil {
            let result = self_test(&mut Framing(PortableEngine::new(), None, how));
            assert!(matches!(result, Err(EngineError::SelfTest { engine: "framing", .. })), "{result:?}");
        }
    }
}
