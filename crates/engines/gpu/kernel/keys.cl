// Keys: expanded by one lane, from words that are arguments of the launch.

FN void expand_aes(uint kind, const raw_key *raw, GLOBAL uint *to) {
  uint words = AES_KEY_WORDS(kind), rounds = ROUNDS(kind), step_constant = 1, schedule[60];
  for (uint n = 0; n < words; n++) schedule[n] = raw->word[RAW_CIPHER + n];
  for (uint n = words; n < 4 * (rounds + 1); n++) {
    uint last = schedule[n - 1];
    if (n % words == 0) {
      last = sub_word(rotr(last, 8)) ^ step_constant;
      step_constant = times_two(step_constant);
    } else if (words > 6 && n % words == 4) {
      last = sub_word(last);
    }
    schedule[n] = schedule[n - words] ^ last;
  }
  uint is_inverse = CIPHER(kind) == CIPHER_CBC && OPENS(kind);
  for (uint n = 0; n < 4 * (rounds + 1); n++) {
    uint round = n / 4, word = is_inverse ? schedule[4 * (rounds - round) + n % 4] : schedule[n];
    to[n] = is_inverse && round > 0 && round < rounds ? inverse_mix_column(word) : word;
  }
}

// Multiplies a power of the hash key by each number of four bits.
FN void expand_power(const uint *power, GLOBAL uint *powers) {
  uint h[4];
  for (uint n = 0; n < 4; n++) h[n] = power[n], powers[n] = 0;
  for (uint bit = 8; bit > 0; bit /= 2) {
    for (uint n = 0; n < 4; n++) powers[4 * bit + n] = h[n];
    uint carried = (h[3] & 1) * 0xe1000000;
    h[3] = h[3] >> 1 | h[2] << 31, h[2] = h[2] >> 1 | h[1] << 31, h[1] = h[1] >> 1 | h[0] << 31;
    h[0] = h[0] >> 1 ^ carried;
  }
  for (uint bit = 2; bit <= 8; bit *= 2) {
    for (uint low = 1; low < bit; low++) {
      for (uint n = 0; n < 4; n++) powers[4 * (bit + low) + n] = powers[4 * bit + n] ^ powers[4 * low + n];
    }
  }
}

// The hash key, a block of zeros encrypted, and squares of squares of it.
FN void expand_ghash(uint kind, GLOBAL uint *key, LOCAL const uint *t) {
  uint h[4] = {0, 0, 0, 0};
  aes_encrypt(h, key + KEY_ROUNDS, ROUNDS(kind), t);
  for (uint n = 0; n < 4; n++) h[n] = swapped(h[n]);
  for (uint level = 0; level < GHASH_POWERS; level++) {
    GLOBAL uint *powers = key + KEY_GHASH + GHASH_WORDS * level;
    expand_power(h, powers);
    ghash_multiply(h, powers, t + 320);
  }
}

FN void expand_des(uint first, uint second, uint is_reversed, GLOBAL uint *to) {
  ulong key = pair_of(first, second);
  uint c = 0, d = 0;
  for (uint n = 0; n < 28; n++) {
    c = c << 1 | ((uint)(key >> (64 - DES_PC1[n])) & 1);
    d = d << 1 | ((uint)(key >> (64 - DES_PC1[28 + n])) & 1);
  }
  for (uint round = 0; round < 16; round++) {
    uint shift = round == 0 || round == 1 || round == 8 || round == 15 ? 1 : 2;
    c = (c << shift | c >> (28 - shift)) & 0x0fffffff;
    d = (d << shift | d >> (28 - shift)) & 0x0fffffff;
    // Groups of six bits: odd ones into one word, even ones into the other.
    uint odd = 0, even = 0;
    for (uint n = 0; n < 48; n++) {
      uint from = DES_PC2[n], bit = from <= 28 ? c >> (28 - from) & 1 : d >> (56 - from) & 1;
      uint placed = bit << (24 - n / 12 * 8 + 5 - n % 6), is_even = n / 6 % 2;
      odd |= is_even ? 0 : placed;
      even |= is_even ? placed : 0;
    }
    uint place = is_reversed ? 15 - round : round;
    to[2 * place] = odd, to[2 * place + 1] = even;
  }
}

// Encrypt, decrypt, encrypt; the reverse in reverse order (RFC 2451 2.1).
FN void expand_triple_des(uint kind, const raw_key *raw, GLOBAL uint *to) {
  for (uint pass = 0; pass < 3; pass++) {
    uint which = OPENS(kind) ? 2 - pass : pass, is_reversed = (pass == 1) != (OPENS(kind) != 0);
    expand_des(raw->word[RAW_CIPHER + 2 * which], raw->word[RAW_CIPHER + 2 * which + 1], is_reversed,
        to + 32 * pass);
  }
}

FN void expand_hmac(uint hash, const raw_key *raw, GLOBAL uint *to) {
  uint key_words = hash == HMAC_MD5 ? 4 : hash == HMAC_SHA1 ? 5 : 8;
  for (uint side = 0; side < 2; side++) {
    uint pad = side == 0 ? 0x36363636 : 0x5c5c5c5c, w[16], h[8];
    for (uint n = 0; n < 16; n++) {
      uint word = (n < key_words ? raw->word[RAW_HMAC + n] : 0) ^ pad;
      w[n] = hash == HMAC_MD5 ? word : swapped(word);
    }
    for (uint n = 0; n < 8; n++) h[n] = SHA256_H[n];
    if (hash != HMAC_SHA256) {
      h[0] = 0x67452301, h[1] = 0xefcdab89, h[2] = 0x98badcfe, h[3] = 0x10325476, h[4] = 0xc3d2e1f0;
    }
    block_of(hash, h, w);
    for (uint n = 0; n < 8; n++) to[8 * side + n] = h[n];
  }
}

FN void expand_long_hmac(uint hash, const raw_key *raw, GLOBAL uint *to) {
  uint key_words = hash == HMAC_SHA384 ? 12 : 16;
  for (uint side = 0; side < 2; side++) {
    uint pad = side == 0 ? 0x36363636 : 0x5c5c5c5c;
    ulong w[16], h[8];
    for (uint n = 0; n < 16; n++) {
      uint first = 2 * n < key_words ? raw->word[RAW_HMAC + (2 * n & 15)] : 0;
      uint second = 2 * n < key_words ? raw->word[RAW_HMAC + (2 * n + 1 & 15)] : 0;
      w[n] = pair_of(first ^ pad, second ^ pad);
    }
    for (uint n = 0; n < 8; n++) h[n] = hash == HMAC_SHA384 ? SHA384_H[n] : SHA512_H[n];
    sha512(h, w);
    for (uint n = 0; n < 8; n++) {
      to[16 * side + 2 * n] = (uint)(h[n] >> 32);
      to[16 * side + 2 * n + 1] = (uint)h[n];
    }
  }
}

KERNEL void testudo_expand(GLOBAL uint *keys, uint slot, uint kind, raw_key raw) {
  SHARED uint table[SHARED_WORDS];
  EACH_LANE load_tables(table, kind, LANE, LANES);
  BARRIER;
  if (LANE != 0) return;
  GLOBAL uint *key = keys + KEY_WORDS * slot;
  uint cipher = CIPHER(kind), hash = INTEGRITY(kind);
  for (uint n = 0; n < KEY_WORDS; n++) key[n] = 0;
  if (cipher == CIPHER_3DES) expand_triple_des(kind, &raw, key + KEY_ROUNDS);
  else if (cipher > 0) expand_aes(kind, &raw, key + KEY_ROUNDS);
  if (cipher == CIPHER_GCM) expand_ghash(kind, key, table);
  if (hash >= HMAC_SHA384) expand_long_hmac(hash, &raw, key + KEY_HMAC);
  else if (hash > 0) expand_hmac(hash, &raw, key + KEY_HMAC);
  key[KEY_SPI] = raw.word[RAW_SPI];
}

KERNEL void testudo_wipe(GLOBAL uint *keys, uint slot) {
  for (uint n = LANE; n < KEY_WORDS; n += LANES) keys[KEY_WORDS * slot + n] = 0;
}
