// AES (FIPS 197), a column in a word.

FN uint times_two(uint x) { return (x << 1 & 0xfefefefe) ^ ((x >> 7 & 0x01010101) * 0x1b); }
FN uint sbox(uint x) { return byte_of(AES_SBOX[x / 4], x % 4); }
FN uint sub_word(uint x) {
  return sbox(byte_of(x, 0)) | sbox(byte_of(x, 1)) << 8 | sbox(byte_of(x, 2)) << 16 |
      sbox(byte_of(x, 3)) << 24;
}

FN uint inverse_mix_column(uint x) {
  uint x2 = times_two(x), x4 = times_two(x2), x8 = times_two(x4);
  uint x9 = x8 ^ x;
  return (x8 ^ x4 ^ x2) ^ rotr(x9 ^ x2, 8) ^ rotr(x9 ^ x4, 16) ^ rotr(x9, 24);
}

// The tables that a kind needs: S-box and column mixing in one, forwards or backwards; 3DES's; GHASH's
// reduction.
FN void load_tables(LOCAL uint *table, uint kind, uint lane, uint lanes) {
  uint cipher = CIPHER(kind);
  for (uint n = lane; n < 512; n += lanes) {
    if (cipher == CIPHER_3DES) {
      table[n] = DES_SP[n];
    } else if (n < 256 && cipher == CIPHER_CBC && OPENS(kind)) {
      uint s = byte_of(AES_INVERSE_SBOX[n / 4], n % 4);
      uint s2 = times_two(s), s4 = times_two(s2), s8 = times_two(s4);
      table[n] = (s8 ^ s4 ^ s2) | (s8 ^ s) << 8 | (s8 ^ s4 ^ s) << 16 | (s8 ^ s2 ^ s) << 24;
    } else if (n < 256) {
      uint s = sbox(n), s2 = times_two(s);
      table[n] = s2 | s << 8 | s << 16 | (s2 ^ s) << 24;
    } else if (n < 320) {
      table[n] = AES_INVERSE_SBOX[n - 256];
    } else if (n < 336) {
      uint r = n - 320;
      table[n] = ((r & 1) * 0x1c20) ^ ((r & 2) * 0x1c20) ^ ((r & 4) * 0x1c20) ^ ((r & 8) * 0x1c20);
    }
  }
}

FN void aes_encrypt(uint *s, GLOBAL const uint *key, uint rounds, LOCAL const uint *t) {
  uint a = s[0] ^ key[0], b = s[1] ^ key[1], c = s[2] ^ key[2], d = s[3] ^ key[3];
  for (uint round = 1; round < rounds; round++) {
    key += 4;
    uint e = t[byte_of(a, 0)] ^ rotl(t[byte_of(b, 1)], 8) ^ rotl(t[byte_of(c, 2)], 16) ^
        rotl(t[byte_of(d, 3)], 24);
    uint f = t[byte_of(b, 0)] ^ rotl(t[byte_of(c, 1)], 8) ^ rotl(t[byte_of(d, 2)], 16) ^
        rotl(t[byte_of(a, 3)], 24);
    uint g = t[byte_of(c, 0)] ^ rotl(t[byte_of(d, 1)], 8) ^ rotl(t[byte_of(a, 2)], 16) ^
        rotl(t[byte_of(b, 3)], 24);
    uint h = t[byte_of(d, 0)] ^ rotl(t[byte_of(a, 1)], 8) ^ rotl(t[byte_of(b, 2)], 16) ^
        rotl(t[byte_of(c, 3)], 24);
    a = e ^ key[0], b = f ^ key[1], c = g ^ key[2], d = h ^ key[3];
  }
  key += 4;
#define LAST(p, q, r, s) \
  (byte_of(t[byte_of(p, 0)], 1) | byte_of(t[byte_of(q, 1)], 1) << 8 | byte_of(t[byte_of(r, 2)], 1) << 16 | \
   byte_of(t[byte_of(s, 3)], 1) << 24)
  s[0] = LAST(a, b, c, d) ^ key[0];
  s[1] = LAST(b, c, d, a) ^ key[1];
  s[2] = LAST(c, d, a, b) ^ key[2];
  s[3] = LAST(d, a, b, c) ^ key[3];
#undef LAST
}

// FIPS 197 5.3.5, the equivalent inverse cipher.
FN void aes_decrypt(uint *s, GLOBAL const uint *key, uint rounds, LOCAL const uint *t) {
  uint a = s[0] ^ key[0], b = s[1] ^ key[1], c = s[2] ^ key[2], d = s[3] ^ key[3];
  for (uint round = 1; round < rounds; round++) {
    key += 4;
    uint e = t[byte_of(a, 0)] ^ rotl(t[byte_of(d, 1)], 8) ^ rotl(t[byte_of(c, 2)], 16) ^
        rotl(t[byte_of(b, 3)], 24);
    uint f = t[byte_of(b, 0)] ^ rotl(t[byte_of(a, 1)], 8) ^ rotl(t[byte_of(d, 2)], 16) ^
        rotl(t[byte_of(c, 3)], 24);
    uint g = t[byte_of(c, 0)] ^ rotl(t[byte_of(b, 1)], 8) ^ rotl(t[byte_of(a, 2)], 16) ^
        rotl(t[byte_of(d, 3)], 24);
    uint h = t[byte_of(d, 0)] ^ rotl(t[byte_of(c, 1)], 8) ^ rotl(t[byte_of(b, 2)], 16) ^
        rotl(t[byte_of(a, 3)], 24);
    a = e ^ key[0], b = f ^ key[1], c = g ^ key[2], d = h ^ key[3];
  }
  key += 4;
#define INVERSE(x) byte_of(t[256 + (x) / 4], (x) % 4)
#define LAST(p, q, r, s) \
  (INVERSE(byte_of(p, 0)) | INVERSE(byte_of(q, 1)) << 8 | INVERSE(byte_of(r, 2)) << 16 | \
   INVERSE(byte_of(s, 3)) << 24)
  s[0] = LAST(a, d, c, b) ^ key[0];
  s[1] = LAST(b, a, d, c) ^ key[1];
  s[2] = LAST(c, b, a, d) ^ key[2];
  s[3] = LAST(d, c, b, a) ^ key[3];
#undef LAST
#undef INVERSE
}

// The first block is the IV in the making (RFC 3602 3): the caller's range says so.
FN void cbc_seal(GLOBAL uint *text, uint bytes, GLOBAL const uint *key, uint rounds, LOCAL const uint *t) {
  uint s[4] = {0, 0, 0, 0};
  for (uint at = 0; at < bytes / 4; at += 4) {
    for (uint n = 0; n < 4; n++) s[n] ^= text[at + n];
    aes_encrypt(s, key, rounds, t);
    for (uint n = 0; n < 4; n++) text[at + n] = s[n];
  }
}

// Opens blocks from `first` up to `end`. `before` is the block in front of the first one as it came: by now
// another lane may have opened it.
FN void cbc_open(GLOBAL uint *text, uint first, uint end, LOCAL const uint *before, GLOBAL const uint *key,
                 uint rounds, LOCAL const uint *t) {
  uint chain[4], s[4];
  for (uint n = 0; n < 4; n++) chain[n] = before[n];
  for (uint at = 4 * first; at < 4 * end; at += 4) {
    uint next[4];
    for (uint n = 0; n < 4; n++) next[n] = s[n] = text[at + n];
    aes_decrypt(s, key, rounds, t);
    for (uint n = 0; n < 4; n++) text[at + n] = s[n] ^ chain[n];
    for (uint n = 0; n < 4; n++) chain[n] = next[n];
  }
}

// The block that counter mode encrypts (RFC 3686 4, SP 800-38D 7.1).
FN void key_stream(uint *s, GLOBAL const uint *nonce, uint counter, GLOBAL const uint *key, uint rounds,
                   LOCAL const uint *t) {
  s[0] = nonce[0], s[1] = nonce[1], s[2] = nonce[2], s[3] = swapped(counter);
  aes_encrypt(s, key, rounds, t);
}

// Every `parts`-th block from `part` on, so that neighbours read neighbours.
FN void ctr(GLOBAL uint *text, uint bytes, uint part, uint parts, GLOBAL const uint *nonce,
            GLOBAL const uint *key, uint rounds, LOCAL const uint *t) {
  uint s[4];
  for (uint block = part; 16 * block < bytes; block += parts) {
    key_stream(s, nonce, 1 + block, key, rounds, t);
    for (uint n = 0; n < 4; n++) {
      uint place = 16 * block + 4 * n;
      put_within(text, place, bytes, word_within(text, place, bytes) ^ s[n]);
    }
  }
}

// GHASH (SP 800-38D 6.4): y := y * H, four bits at a time. Words have the first byte on top.
FN void ghash_multiply(uint *y, GLOBAL const uint *powers, LOCAL const uint *reduction) {
  uint a = 0, b = 0, c = 0, d = 0;
  for (uint word = 4; word-- > 0;) {
    uint rest = y[word];
    for (uint n = 0; n < 8; n++, rest >>= 4) {
      uint carried = reduction[d & 15];
      GLOBAL const uint *power = powers + 4 * (rest & 15);
      d = (d >> 4 | c << 28) ^ power[3];
      c = (c >> 4 | b << 28) ^ power[2];
      b = (b >> 4 | a << 28) ^ power[1];
      a = (a >> 4 ^ carried << 16) ^ power[0];
    }
  }
  y[0] = a, y[1] = b, y[2] = c, y[3] = d;
}

FN uint levels_of(uint parts) {
  uint levels = 0;
  while (1u << levels < parts) levels++;
  return levels;
}

// GHASH of X_0, X_1, ... is the sum of X_n * H^(m - n). What a lane has of it is every `parts`-th block, by
// powers of H^parts, and lacks H^(parts - part) as a factor. Lanes are then added up in pairs, in which the
// first lacks one, two, four ... powers of H more than the second; the last power comes at the end. Blocks of
// zeros in front make all lanes' counts equal.
FN void gcm_blocks(uint kind, GLOBAL const uint *job, GLOBAL uint *packet, GLOBAL const uint *key,
                   uint part, uint parts, LOCAL uint *sum, LOCAL const uint *t) {
  GLOBAL const uint *round_keys = key + KEY_ROUNDS, *nonce = job + JOB_NONCE;
  GLOBAL const uint *powers = key + KEY_GHASH + GHASH_WORDS * levels_of(parts);
  LOCAL const uint *reduction = t + 320;
  uint y[4] = {0, 0, 0, 0}, s[4], rounds = ROUNDS(kind), opens = OPENS(kind);
  uint aad_bytes = job[JOB_AUTHENTICATED], bytes = job[JOB_CIPHER_BYTES];
  // Additional data and text, each padded to whole blocks, and their lengths.
  uint aad_blocks = (aad_bytes + 15) / 16, blocks = aad_blocks + (bytes + 15) / 16 + 1;
  uint in_front = (parts - blocks % parts) % parts;
  GLOBAL uint *text = packet + job[JOB_CIPHER_AT] / 4;
  for (uint place = part; place < in_front + blocks; place += parts) {
    if (place < in_front) continue;
    if (place >= parts) ghash_multiply(y, powers, reduction);
    uint block = place - in_front, at = 16 * (block - aad_blocks);
    if (block < aad_blocks) {
      for (uint n = 0; n < 4; n++) y[n] ^= swapped(word_within(packet, 16 * block + 4 * n, aad_bytes));
    } else if (block + 1 < blocks) {
      key_stream(s, nonce, 2 + block - aad_blocks, round_keys, rounds, t);
      for (uint n = 0; n < 4; n++) {
        uint before = word_within(text, at + 4 * n, bytes);
        put_within(text, at + 4 * n, bytes, before ^ s[n]);
        y[n] ^= swapped(opens ? before : word_within(text, at + 4 * n, bytes));
      }
    } else {
      y[1] ^= aad_bytes * 8;
      y[3] ^= bytes * 8;
    }
  }
  for (uint n = 0; n < 4; n++) sum[n] = y[n];
}

// Adds up a pair of lanes that are `1 << level` apart, into the first.
FN void gcm_pair(GLOBAL const uint *key, uint level, LOCAL uint *sum, LOCAL const uint *t) {
  uint y[4];
  for (uint n = 0; n < 4; n++) y[n] = sum[n];
  ghash_multiply(y, key + KEY_GHASH + GHASH_WORDS * level, t + 320);
  LOCAL const uint *other = sum + (BLOCK_WORDS << level);
  for (uint n = 0; n < 4; n++) sum[n] = y[n] ^ other[n];
}

FN void gcm_digest(uint kind, GLOBAL const uint *job, GLOBAL const uint *key, LOCAL const uint *sum,
                   uint *digest, LOCAL const uint *t) {
  uint y[4], s[4];
  for (uint n = 0; n < 4; n++) y[n] = sum[n];
  ghash_multiply(y, key + KEY_GHASH, t + 320);
  key_stream(s, job + JOB_NONCE, 1, key + KEY_ROUNDS, ROUNDS(kind), t);
  for (uint n = 0; n < 4; n++) digest[n] = swapped(y[n]) ^ s[n];
}

// 3DES (FIPS 46-3), in the arrangement of Outerbridge: halves are rotated left by one bit throughout, and of
// the round keys' groups of six bits the odd ones are in the first word.

#define EXCHANGE(left, right, shift, mask) \
  { \
    uint change = ((left >> shift) ^ right) & mask; \
    right ^= change; \
    left ^= change << shift; \
  }

FN uint des_round(uint right, GLOBAL const uint *key, LOCAL const uint *sp) {
  uint odd = rotr(right, 4) ^ key[0], even = right ^ key[1];
  return sp[odd >> 24 & 63] ^ sp[64 + (even >> 24 & 63)] ^ sp[128 + (odd >> 16 & 63)] ^
      sp[192 + (even >> 16 & 63)] ^
         sp[256 + (odd >> 8 & 63)] ^ sp[320 + (even >> 8 & 63)] ^ sp[384 + (odd & 63)] ^
             sp[448 + (even & 63)];
}

// A block is its first word, and the second one above that.
FN ulong triple_des(ulong block, GLOBAL const uint *key, LOCAL const uint *sp) {
  uint left = swapped((uint)block), right = swapped((uint)(block >> 32));
  EXCHANGE(left, right, 4, 0x0f0f0f0f)
  EXCHANGE(left, right, 16, 0x0000ffff)
  EXCHANGE(right, left, 2, 0x33333333)
  EXCHANGE(right, left, 8, 0x00ff00ff)
  right = rotl(right, 1);
  uint change = (left ^ right) & 0xaaaaaaaa;
  left ^= change, right ^= change;
  left = rotl(left, 1);
  for (uint pass = 0; pass < 3; pass++) {
    for (uint round = 0; round < 16; round += 2, key += 4) {
      left ^= des_round(right, key, sp);
      right ^= des_round(left, key + 2, sp);
    }
    // The halves change places at the end of each: final and initial permutation cancel each other.
    uint other = left;
    left = right, right = other;
  }
  // After the exchange `left` is the first half of what the final permutation takes.
  left = rotr(left, 1);
  change = (left ^ right) & 0xaaaaaaaa;
  left ^= change, right ^= change;
  right = rotr(right, 1);
  EXCHANGE(right, left, 8, 0x00ff00ff)
  EXCHANGE(right, left, 2, 0x33333333)
  EXCHANGE(left, right, 16, 0x0000ffff)
  EXCHANGE(left, right, 4, 0x0f0f0f0f)
  return swapped(left) | (ulong)swapped(right) << 32;
}

// As AES in CBC mode, with blocks of 8 bytes (RFC 2451), from `first` up to `end`; `chain` is the block in
// front of these.
FN void des_cbc(GLOBAL uint *text, uint first, uint end, ulong chain, uint opens, GLOBAL const uint *key,
                LOCAL const uint *sp) {
  for (uint at = 2 * first; at < 2 * end; at += 2) {
    ulong before = text[at] | (ulong)text[at + 1] << 32;
    ulong after = triple_des(opens ? before : before ^ chain, key, sp);
    if (opens) after ^= chain;
    chain = opens ? before : after;
    text[at] = (uint)after, text[at + 1] = (uint)(after >> 32);
  }
}
