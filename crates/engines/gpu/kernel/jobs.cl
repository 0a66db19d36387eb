// A job, and the lane's part of its packet.
typedef struct {
  GLOBAL const uint *words, *key;
  GLOBAL uint *packet, *result;
  uint part, parts;
} a_job;

FN a_job job_of(GLOBAL const uint *words, uint part, uint parts, GLOBAL uint *arena,
                GLOBAL const uint *keys) {
  a_job job;
  job.words = words, job.key = keys + KEY_WORDS * words[JOB_KEY];
  job.packet = arena + words[JOB_PACKET], job.result = arena + words[JOB_RESULT];
  job.part = part, job.parts = parts;
  return job;
}

FN uint is_des(uint kind) { return CIPHER(kind) == CIPHER_3DES; }
FN uint is_cbc(uint kind) { return CIPHER(kind) == CIPHER_CBC || is_des(kind); }

// CBC mode opens blocks in any order if it still has the one before each. Parts are equal and one after the
// other; the last ones may be shorter or empty. The first block is the IV and stays.
FN uint first_of_part(const a_job *job, uint blocks) {
  return 1 + job->part * ((blocks + job->parts - 2) / job->parts);
}
FN uint end_of_part(const a_job *job, uint blocks) {
  uint end = first_of_part(job, blocks) + (blocks + job->parts - 2) / job->parts;
  return end < blocks ? end : blocks;
}
FN uint cbc_blocks(uint kind, const a_job *job) {
  return job->words[JOB_CIPHER_BYTES] / (is_des(kind) ? 8 : 16);
}

// The lane of the part before overwrites it.
FN void keep_block_before(uint kind, const a_job *job, LOCAL uint *block) {
  uint blocks = cbc_blocks(kind, job), first = first_of_part(job, blocks), words = is_des(kind) ? 2 : 4;
  if (first >= blocks) return;
  GLOBAL const uint *text = job->packet + job->words[JOB_CIPHER_AT] / 4;
  for (uint n = 0; n < words; n++) block[n] = text[words * (first - 1) + n];
}

FN void encrypt_or_decrypt(uint kind, const a_job *job, LOCAL const uint *block, LOCAL const uint *t) {
  GLOBAL uint *text = job->packet + job->words[JOB_CIPHER_AT] / 4;
  GLOBAL const uint *round_keys = job->key + KEY_ROUNDS, *nonce = job->words + JOB_NONCE;
  uint bytes = job->words[JOB_CIPHER_BYTES], rounds = ROUNDS(kind);
  uint blocks = cbc_blocks(kind, job), first = first_of_part(job, blocks), end = end_of_part(job, blocks);
  if (is_des(kind)) {
    ulong chain = OPENS(kind) ? block[0] | (ulong)block[1] << 32 : 0;
    if (!OPENS(kind)) first = 0, end = job->part == 0 ? blocks : 0;
    des_cbc(text, first, end, chain, OPENS(kind), round_keys, t);
  } else if (is_cbc(kind)) {
    if (OPENS(kind)) cbc_open(text, first, end, block, round_keys, rounds, t);
    else if (job->part == 0) cbc_seal(text, bytes, round_keys, rounds, t);
  } else if (CIPHER(kind) == CIPHER_CTR) {
    ctr(text, bytes, job->part, job->parts, nonce, round_keys, rounds, t);
  }
}

FN void put_digest(const a_job *job, const uint *digest) {
  for (uint n = 0; n < DIGEST_WORDS; n++) job->result[n] = digest[n];
}

// HMAC is one lane's: each block of it needs the one before.
FN void authenticate(uint kind, const a_job *job) {
  uint hash = INTEGRITY(kind), bytes = job->words[JOB_AUTHENTICATED], digest[DIGEST_WORDS];
  GLOBAL const uint *states = job->key + KEY_HMAC;
  for (uint n = 0; n < DIGEST_WORDS; n++) digest[n] = 0;
  if (hash >= HMAC_SHA384) long_hmac(hash, states, job->packet, bytes, digest);
  else if (hash > 0) hmac(hash, states, job->packet, bytes, digest);
  put_digest(job, digest);
}

// Steps of a pair: the cipher and the hash, in either order.
#define PAIR_STEPS 2

// One step of a lane. In that of the cipher it has its part of a packet; in that of the hash it has a packet
// for itself, so that those at work are neighbours.
FN void pair_step(uint step, uint kind, uint jobs, uint parts, GLOBAL const uint *first, GLOBAL uint *arena,
                  GLOBAL const uint *keys, LOCAL const uint *t, LOCAL uint *block) {
  uint packet = LANE / parts;
  if (packet < jobs) {
    a_job job = job_of(first + JOB_WORDS * packet, LANE % parts, parts, arena, keys);
    // Encrypt, then authenticate; authenticate, then decrypt.
    if (step == 0 && OPENS(kind) && is_cbc(kind)) keep_block_before(kind, &job, block);
    if (step == OPENS(kind)) encrypt_or_decrypt(kind, &job, block, t);
  }
  if (step == 1 - OPENS(kind) && LANE < jobs) {
    a_job job = job_of(first + JOB_WORDS * LANE, 0, 1, arena, keys);
    authenticate(kind, &job);
  }
}

// Steps of AES-GCM: all blocks, then pairs of lanes, and the digest.
FN void gcm_step(uint step, uint kind, uint jobs, uint parts, GLOBAL const uint *first, GLOBAL uint *arena,
                 GLOBAL const uint *keys, LOCAL const uint *t, LOCAL uint *sum) {
  uint packet = LANE / parts, part = LANE % parts, levels = levels_of(parts);
  if (packet >= jobs) return;
  a_job job = job_of(first + JOB_WORDS * packet, part, parts, arena, keys);
  if (step == 0) {
    gcm_blocks(kind, job.words, job.packet, job.key, part, parts, sum, t);
  } else if (step <= levels) {
    if (part % (1u << step) == 0) gcm_pair(job.key, step - 1, sum, t);
  } else if (step == levels + 1 && part == 0) {
    uint digest[DIGEST_WORDS];
    for (uint n = 0; n < DIGEST_WORDS; n++) digest[n] = 0;
    gcm_digest(kind, job.words, job.key, sum, digest, t);
    put_digest(&job, digest);
  }
}

// What the host has left out of an ESP packet (RFC 4303 2): SPI and number, the IV, and behind the payload
// padding (1, 2, 3, ...), its length and the next header. The block that becomes the IV of CBC begins with
// zeros where it is longer. The lane has a packet for itself: the payload and what comes behind the trailer
// share words with it.
FN void write_frame(const a_job *job) {
  GLOBAL const uint *words = job->words;
  GLOBAL uint *packet = job->packet;
  uint frame = words[JOB_FRAME], padding = byte_of(frame, 0), next_header = byte_of(frame, 1);
  uint number_at = byte_of(frame, 2), iv_words = byte_of(frame, 3);
  packet[0] = job->key[KEY_SPI];
  packet[number_at] = words[JOB_NUMBER];
  for (uint n = 0; n < iv_words; n++) {
    packet[number_at + 1 + n] = n + 2 < iv_words ? 0 : words[JOB_NONCE + 3 + n - iv_words];
  }
  uint end = words[JOB_CIPHER_AT] + words[JOB_CIPHER_BYTES], from = end - 2 - padding;
  for (uint at = from / 4 * 4; at < end; at += 4) {
    uint word = packet[at / 4];
    for (uint n = 0; n < 4; n++) {
      uint place = at + n;
      uint byte = place + 2 < end ? place - from + 1 : place + 2 == end ? padding : next_header;
      if (place >= from && place < end) word = (word & ~(0xffu << (8 * n))) | byte << (8 * n);
    }
    packet[at / 4] = word;
  }
}

// The step before all others of a bin with frames.
FN void frame_step(uint jobs, GLOBAL const uint *first, GLOBAL uint *arena, GLOBAL const uint *keys) {
  if (LANE >= jobs) return;
  a_job job = job_of(first + JOB_WORDS * LANE, 0, 1, arena, keys);
  write_frame(&job);
}

KERNEL void testudo_run(GLOBAL const uint *plan, GLOBAL uint *arena, GLOBAL const uint *keys) {
  SHARED uint table[SHARED_WORDS], blocks[BLOCK_WORDS * MOST_LANES];
  GLOBAL const uint *bin = plan + BIN_WORDS * GROUP, *first = plan + bin[BIN_JOBS_AT];
  uint kind = bin[BIN_KIND], jobs = bin[BIN_JOBS], parts = bin[BIN_PARTS];
  uint is_gcm = CIPHER(kind) == CIPHER_GCM, steps = is_gcm ? 2 + levels_of(parts) : PAIR_STEPS;
  uint frames = FRAMES(kind);
  EACH_LANE load_tables(table, kind, LANE, LANES);
  BARRIER;
  for (uint pass = 0; pass < frames + steps; pass++) {
    uint step = pass - frames;
    EACH_LANE {
      LOCAL uint *block = blocks + BLOCK_WORDS * LANE;
      if (pass < frames) frame_step(jobs, first, arena, keys);
      else if (is_gcm) gcm_step(step, kind, jobs, parts, first, arena, keys, table, block);
      else pair_step(step, kind, jobs, parts, first, arena, keys, table, block);
    }
    BARRIER;
  }
  // The mark says that all lanes of a packet came so far.
  EACH_LANE {
    if (LANE < jobs) {
      GLOBAL const uint *job = first + JOB_WORDS * LANE;
      arena[job[JOB_RESULT] + DIGEST_WORDS] = job[JOB_MARK];
    }
  }
}

#if !defined(__OPENCL_VERSION__) && !defined(__CUDACC__)
// A launch on the CPU: group by group, step by step, lane by lane.
extern "C" void testudo_run_groups(const uint *plan, uint *arena, const uint *keys, uint groups, uint lanes,
                                   uint is_last_lane_first) {
  LANES = lanes, IS_LAST_LANE_FIRST = is_last_lane_first;
  for (GROUP = 0; GROUP < groups; GROUP++) testudo_run(plan, arena, keys);
  LANE = 0, LANES = 1;
}
#endif
