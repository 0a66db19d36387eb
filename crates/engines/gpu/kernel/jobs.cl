FN void encrypt_or_decrypt(uint kind, GLOBAL const uint *job, GLOBAL uint *packet, GLOBAL const uint *key,
                           LOCAL const uint *t) {
  GLOBAL uint *text = packet + job[JOB_CIPHER_AT] / 4;
  uint bytes = job[JOB_CIPHER_BYTES], cipher = CIPHER(kind);
  GLOBAL const uint *round_keys = key + KEY_ROUNDS;
  if (cipher == CIPHER_CBC) cbc(text, bytes, OPENS(kind), round_keys, ROUNDS(kind), t);
  else if (cipher == CIPHER_CTR) ctr(text, bytes, job + JOB_NONCE, round_keys, ROUNDS(kind), t);
  else if (cipher == CIPHER_3DES) des_cbc(text, bytes, OPENS(kind), round_keys, t);
}

FN void authenticate(uint kind, GLOBAL const uint *job, GLOBAL const uint *packet, GLOBAL const uint *key,
                     uint *digest) {
  uint hash = INTEGRITY(kind), bytes = job[JOB_AUTHENTICATED];
  if (hash >= HMAC_SHA384) long_hmac(hash, key + KEY_HMAC, packet, bytes, digest);
  else if (hash > 0) hmac(hash, key + KEY_HMAC, packet, bytes, digest);
}

FN void do_job(uint kind, GLOBAL const uint *job, GLOBAL uint *arena, GLOBAL const uint *keys,
    LOCAL const uint *t) {
  GLOBAL uint *packet = arena + job[JOB_PACKET], *result = arena + job[JOB_RESULT];
  GLOBAL const uint *key = keys + KEY_WORDS * job[JOB_KEY];
  uint digest[DIGEST_WORDS];
  for (uint n = 0; n < DIGEST_WORDS; n++) digest[n] = 0;
  if (CIPHER(kind) == CIPHER_GCM) {
    gcm(kind, job, packet, key, t, digest);
  } else {
    // Encrypt, then authenticate; authenticate, then decrypt.
    for (uint step = 0; step < 2; step++) {
      if (step == OPENS(kind)) encrypt_or_decrypt(kind, job, packet, key, t);
      else authenticate(kind, job, packet, key, digest);
    }
  }
  for (uint n = 0; n < DIGEST_WORDS; n++) result[n] = digest[n];
  result[DIGEST_WORDS] = job[JOB_MARK];
}

KERNEL void testudo_run(GLOBAL const uint *plan, GLOBAL uint *arena, GLOBAL const uint *keys) {
  SHARED uint table[SHARED_WORDS];
  GLOBAL const uint *bin = plan + BIN_WORDS * GROUP;
  uint kind = bin[0], count = bin[2];
  load_tables(table, kind, LANE, LANES);
  BARRIER;
  for (uint n = LANE; n < count; n += LANES) do_job(kind, plan + bin[1] + JOB_WORDS * n, arena, keys, table);
}

#if !defined(__OPENCL_VERSION__) && !defined(__CUDACC__)
// A launch on the CPU: group by group, each of one lane.
extern "C" void testudo_run_groups(const uint *plan, uint *arena, const uint *keys, uint groups) {
  for (GROUP = 0; GROUP < groups; GROUP++) testudo_run(plan, arena, keys);
}
#endif
