"""The software GPU: PTX compiled for the host, run by the C scheduler in this folder."""
