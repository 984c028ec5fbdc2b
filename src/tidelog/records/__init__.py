"""Record batches, version 2: header, CRC, compression, records, control records."""
